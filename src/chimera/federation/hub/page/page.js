"use strict";
const POLL_MS = 2000;
const time = s => {
  if (s === null) return "";
  const d = new Date(1000 * s),
    two = n => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}`;
};

function drawNodes(page) {
  const [body, cells] = head(at("nodes"), ["node", "state", "for", "last 24 hours", "last seen", "epsilon left", "version", "member since"], {
    "last 24 hours": "strip",
  });
  const hours = make("div", undefined, cells["last 24 hours"], "hours");
  cells["last 24 hours"].firstChild.remove();
  ["24 h ago", "18 h", "12 h", "6 h", "now"].forEach((text, i) => {
    make("span", text, hours).style.left = `${25 * i}%`;
  });
  for (const node of page.nodes) {
    const row = make("tr", undefined, body);
    make("td", node.name, row, "name").title = node.name;
    make("td", node.state, row, node.state);
    make("td", node.here_s === null ? "" : span(page.now_s - node.here_s), row).title =
      node.here_s === null ? "" : `since ${time(node.here_s)}`;
    const picture = draw(
      "svg",
      { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img" },
      make("td", undefined, row, "strip"),
    );
    for (const [from, to] of node.presence)
      draw("rect", { x: 1000 * from, y: 0, width: Math.max(2, 1000 * (to - from)), height: 10 }, picture);
    const part = node.presence.reduce((sum, [from, to]) => sum + to - from, 0);
    picture.setAttribute("aria-label", `connected for ${Math.round(100 * Math.min(1, part))} % of the last 24 hours`);
    make(
      "td",
      node.seen_s === null ? "never" : node.state === "connected" ? "now" : `${span(page.now_s - node.seen_s)} ago`,
      row,
    ).title = time(node.seen_s);
    const budget = node.epsilon,
      left = budget && (budget.left === null ? "no limit" : `${Math.floor(100 * budget.left) / 100} of ${budget.limit}`);
    make("td", left || "", row).title = budget
      ? `of all requesters, at delta ${budget.delta}, protects = "${budget.protects}"`
      : "the policy of this node does not release it";
    make("td", node.version, row);
    make("td", time(node.member_s), row);
  }
  if (page.more_nodes) emptyRow(body, `and ${count(page.more_nodes, "further node")}`, 8);
  if (!page.nodes.length) emptyRow(body, "no nodes yet: chimera hub invite NAME", 8);
}

function drawRuns(page) {
  const [body] = head(
    at("runs"),
    ["run", "requester", "state", "strategy", "model", "progress", "calls", "requests", "answers", "started", "last seen"],
    { calls: "number", requests: "number", answers: "number" },
  );
  for (const run of page.runs) {
    const row = make("tr", undefined, body);
    make("td", run.run.slice(0, 8), row).title = run.run;
    make("td", run.requester, row, "name").title = run.requester;
    make("td", run.state, row, run.state);
    make("td", run.strategy, row, "name");
    make("td", run.model, row, "name");
    const cell = make("td", undefined, row);
    if (run.fraction !== null) {
      const bar = make("progress", undefined, cell);
      bar.max = 1;
      bar.value = run.fraction;
      bar.setAttribute("aria-label", "progress");
    }
    if (run.strategy) cell.append(count(run.rounds, "round"));
    make("td", run.calls, row, "number");
    make("td", bytes(run.bytes_in), row, "number");
    make("td", bytes(run.bytes_out), row, "number");
    make("td", time(run.since_s), row);
    make("td", run.state === "running" ? "now" : `${span(page.now_s - run.seen_s)} ago`, row);
  }
  if (!page.runs.length) emptyRow(body, "no runs yet", 11);
}

async function look() {
  const page = await (await request("v1/hub/page")).json();
  const here = page.nodes.filter(each => each.state === "connected").length,
    busy = page.runs.filter(each => each.state === "running").length;
  const members = page.nodes.filter(each => each.state !== "revoked").length;
  showStatus(`live · ${here} of ${count(members, "node")} connected · ${count(busy, "run")} under way`);
  drawNodes(page);
  drawRuns(page);
}

keep(look, POLL_MS, "this page", "the hub does not answer; trying again …");
