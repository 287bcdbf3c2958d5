"use strict";
const MAX_POINTS = 2000,
  POLL_MS = 1000;
let points = [],
  edges = [],
  known = false;
const time = s => (s === null || s === undefined ? "" : s < 1 ? `${+(1000 * s).toPrecision(3)} ms` : `${+s.toPrecision(3)} s`);
const color = job => `hsl(${(Number(job) * 137 + 70) % 360} 60% 50%)`;

function drawJobs(page) {
  const [body] = head(at("jobs"), [
    "job",
    "name",
    "state",
    "progress",
    "queries/s",
    "workers",
    "median",
    "p99",
    "weight",
    "why it is not faster",
  ]);
  for (const job of [...page.jobs].reverse()) {
    const row = make("tr", undefined, body),
      name = make("td", undefined, row);
    mark(color(job.job), name);
    name.append(job.job);
    make("td", job.name, row);
    make("td", job.state, row, job.state);
    const cell = make("td", undefined, row);
    if (job.state === "serving") cell.append(`${job.finished} answers`);
    else {
      const bar = make("progress", undefined, cell);
      bar.max = job.queries || 1;
      bar.value = job.finished;
      bar.setAttribute("aria-label", `progress of job ${job.job}`);
      cell.append(` ${job.finished}/${job.queries}`);
    }
    if (job.errors) make("span", ` ${job.errors} errors`, cell, "error");
    make("td", job.ended_s === null ? job.rate.toFixed(1) : "", row);
    make("td", job.workers.length, row).title = job.workers.join(" ");
    make("td", time(job.median_s), row);
    make("td", time(job.p99_s), row);
    make("td", job.weight, row);
    make("td", job.why, row, "reason");
  }
  if (!page.jobs.length) emptyRow(body, "no jobs yet: chimera infer submit --model FILE --inputs WHAT", 10);
}

function drawRates() {
  const box = at("rates");
  box.replaceChildren();
  if (points.length < 2) {
    make("p", "no measurements yet", box, "soft");
    return;
  }
  const figure = make("figure", undefined, box),
    caption = make("figcaption", undefined, figure);
  const first = points[0].at_s,
    last = points[points.length - 1].at_s;
  const top = Math.max(...points.map(point => Math.max(point.fair, ...Object.values(point.jobs)))) || 1;
  make("span", "rate of each job per weight, over 10 s; dashed: the fair rate", caption);
  make("strong", `fair: ${points[points.length - 1].fair.toFixed(1)}/s`, caption);
  const picture = draw(
    "svg",
    {
      viewBox: "0 0 100 100",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `rates of the jobs up to ${top.toFixed(1)} per second`,
    },
    figure,
  );
  const place = (at_s, value) => `${(100 * (at_s - first)) / (last - first || 1)},${98 - (96 * value) / top}`;
  draw("polyline", { class: "fair", points: points.map(point => place(point.at_s, point.fair)).join(" ") }, picture);
  for (const job of new Set(points.flatMap(point => Object.keys(point.jobs)))) {
    let piece = []; // a job without work has no rate
    const end = () => {
      if (piece.length) draw("polyline", { points: piece.join(" ") }, picture).style.stroke = color(job);
      piece = [];
    };
    for (const point of points)
      if (job in point.jobs) piece.push(place(point.at_s, point.jobs[job]));
      else end();
    end();
  }
  const ends = make("div", undefined, figure, "ends");
  make("span", `${span(last - first)} ago`, ends);
  make("span", `0 to ${top.toFixed(1)}/s`, ends);
  make("span", "now", ends);
}

function drawWorkers(page) {
  const [body] = head(at("workers"), [
    "worker",
    "state",
    "job",
    "batch",
    "for",
    "models in memory",
    "busy",
    "machine",
    "error",
  ]);
  for (const each of page.workers) {
    const row = make("tr", undefined, body),
      [batch] = each.batches;
    make("td", each.worker, row);
    make("td", each.state, row, each.state);
    const job = make("td", undefined, row);
    if (each.job !== null) {
      mark(color(each.job), job);
      job.append(each.job);
    }
    make("td", batch ? batch[1] % 2 ** 32 : "", row);
    make("td", each.since_s === null ? "" : time(Math.max(0, page.now_s - each.since_s)), row);
    make("td", each.models, row);
    make("td", each.up_s ? `${Math.round((100 * each.busy_s) / each.up_s)} %` : "", row);
    make("td", each.host, row);
    make("td", each.error ?? "", row);
  }
  if (!page.workers.length) emptyRow(body, "no workers: chimera infer scale N", 9);
}

function drawTimes(page) {
  const box = at("times");
  box.replaceChildren();
  for (const job of page.jobs
    .filter(each => each.histogram.length)
    .reverse()
    .slice(0, 12)) {
    const counts = job.histogram,
      most = Math.max(...counts);
    const low = counts.findIndex(count => count),
      high = counts.length - [...counts].reverse().findIndex(count => count);
    const from = Math.max(0, low - 1),
      to = Math.min(counts.length, high + 1);
    const figure = make("figure", undefined, box),
      caption = make("figcaption", undefined, figure),
      name = make("span", undefined, caption);
    mark(color(job.job), name);
    name.append(`${job.job} ${job.name}`);
    make("strong", `p99 ${time(job.p99_s)}`, caption);
    const picture = draw(
      "svg",
      {
        viewBox: `0 0 ${to - from} 100`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `processing times of job ${job.job}`,
      },
      figure,
    );
    for (let i = from; i < to; i++) {
      const height = (96 * counts[i]) / most;
      draw("rect", { x: i - from + 0.05, y: 100 - height, width: 0.9, height }, picture).style.fill = color(job.job);
    }
    const ends = make("div", undefined, figure, "ends");
    make("span", from ? time(edges[from - 1]) : "0", ends);
    make("span", to <= edges.length ? time(edges[to - 1]) : "more", ends);
  }
  if (!box.children.length) make("p", "no measurements yet", box, "soft");
}

function drawEvents(page) {
  const [body] = head(at("events"), ["time", "by", "kind", "event"]);
  for (const event of [...page.events].reverse()) {
    const row = make("tr", undefined, body);
    make("td", event.at, row);
    make("td", event.by, row);
    make("td", event.level === "info" ? "takeover" : event.level, row, event.level);
    make("td", event.text, row, "reason");
  }
}

async function look() {
  const page = await (await request(`v1/infer/page${known ? "" : "?history"}`)).json();
  if (!known) {
    edges = page.edges_s;
    points = page.history;
    known = true;
  }
  points.push(page.rates);
  if (points.length > MAX_POINTS) points = points.filter((_, i) => i % 2 === 0 || i === points.length - 1);
  const busy = page.workers.filter(each => each.state === "busy" || each.state === "loading").length;
  showStatus(`live · ${page.leader} leads, epoch ${page.epoch} · ${busy} of ${page.workers.length} workers busy`);
  drawJobs(page);
  drawRates();
  drawWorkers(page);
  drawTimes(page);
  drawEvents(page);
}

keep(look, POLL_MS, "this cluster", "no coordinator answers; trying again …");
