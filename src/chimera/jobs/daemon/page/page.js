"use strict";
const MAX_POINTS = 1000;
const curves = new Map(); // by job: a map from a value's name to its points
const measured = new Map(); // by job: its last metrics, as text
let cluster = { jobs: [], processes: [] },
  chosen = null;

function drawJobs() {
  const table = at("jobs"),
    focused = document.activeElement && document.activeElement.dataset.job;
  const [body] = head(table, ["job", "name", "user", "state", "progress", "workers", "since", "reason"]);
  for (const job of [...cluster.jobs].reverse()) {
    const row = make("tr", undefined, body, job.job === current() ? "chosen" : "");
    row.tabIndex = 0;
    row.dataset.job = job.job;
    row.onclick = () => {
      chosen = job.job;
      drawAll();
    };
    row.onkeydown = event => {
      if (event.key === "Enter") row.onclick();
    };
    make("td", job.job, row);
    make("td", job.name, row);
    make("td", job.user, row);
    make("td", job.state, row, job.state);
    const cell = make("td", undefined, row),
      bar = make("progress", undefined, cell);
    bar.max = 1;
    bar.value = job.progress;
    bar.setAttribute("aria-label", `progress of job ${job.job}`);
    cell.append(` ${Math.round(100 * job.progress)} %`);
    make("td", job.on.length ? `${job.workers}: ${job.on.join(" ")}` : job.workers, row);
    make("td", span(Date.now() / 1000 - job.since_s), row);
    make("td", job.reason, row, "reason");
    if (focused === job.job) row.focus();
  }
  if (!cluster.jobs.length) emptyRow(body, "no jobs yet: chimera submit EXPERIMENT.toml", 8);
}

function drawProcesses() {
  const [body] = head(at("processes"), ["name", "role", "state", "job", "host", "process"]);
  for (const each of cluster.processes) {
    const row = make("tr", undefined, body);
    make("td", each.name, row);
    make("td", each.role, row);
    make("td", each.state, row, each.state);
    make("td", each.job, row);
    make("td", each.host, row);
    make("td", each.pid, row);
  }
}

function current() {
  if (cluster.jobs.some(job => job.job === chosen)) return chosen;
  const newest = [...cluster.jobs].reverse();
  return (newest.find(job => job.state === "running") || newest.find(job => curves.has(job.job)) || {}).job;
}

function drawCurves() {
  const job = cluster.jobs.find(each => each.job === current()),
    box = at("curves");
  at("curves-title").textContent = job ? `Curves of job ${job.job}, ${job.name}` : "Curves";
  if (box.contains(document.activeElement)) return; // a chart that is read with the keyboard is not redrawn
  box.replaceChildren();
  for (const [name, points] of curves.get(job && job.job) || []) {
    if (points.length)
      lineChart(box, name.replaceAll("_", " "), [{ name, color: SERIES[0], points }], { xLabel: whole, xName: "round" });
  }
  if (!box.children.length) make("p", "no measurements yet", box, "soft");
}

function drawAll() {
  drawJobs();
  drawCurves();
  drawProcesses();
}

function take(points, job) {
  if (!curves.has(job)) curves.set(job, new Map());
  const lines = curves.get(job);
  for (const point of points) {
    for (const line of lines.values()) {
      // an attempt resumes from a checkpoint: drop the points after it
      while (line.length && line[line.length - 1][0] > point.round) line.pop();
    }
    const evaluation = JSON.stringify(point.metrics); // repeated until the next evaluation
    const values = evaluation === measured.get(job) ? {} : { ...point.metrics };
    measured.set(job, evaluation);
    if (point.loss !== null) values["training loss"] = point.loss;
    for (const [name, value] of Object.entries(values)) {
      if (!Number.isFinite(value)) continue;
      if (!lines.has(name)) lines.set(name, []);
      const line = lines.get(name);
      if (line.length && line[line.length - 1][0] === point.round) line.pop();
      line.push([point.round, value]);
      if (line.length > MAX_POINTS)
        lines.set(
          name,
          line.filter((_, i) => i % 2 === 0 || i === line.length - 1),
        );
    }
  }
}

function receive(event) {
  const kind = /^event: (.*)$/m.exec(event),
    data = /^data: (.*)$/m.exec(event);
  if (!kind || !data) return;
  const sent = JSON.parse(data[1]);
  if (kind[1] === "cluster") cluster = sent;
  if (kind[1] === "points") take(sent.points, sent.job);
}

async function listen() {
  // with fetch, since EventSource cannot send a token
  const answer = await request("v1/page/events"),
    reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  curves.clear();
  measured.clear();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new TypeError("the stream has ended");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    if (!events.length) continue;
    events.forEach(receive);
    const workers = cluster.processes.filter(each => each.role === "worker");
    showStatus(`live · ${workers.filter(each => each.state === "busy").length} of ${workers.length} workers busy`);
    drawAll();
  }
}

keep(listen, 1000, "this cluster", "the daemon does not answer; trying again …");
