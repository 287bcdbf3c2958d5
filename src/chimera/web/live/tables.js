"use strict";
// Cards, workers, traffic, events and clients of one run.
const MAX_ROWS = 200;

function drawCards(list, run) {
  const row = run.last,
    summary = run.about.summary || {},
    gone = [...run.states.keys()].filter(actor => run.isGone(actor)).length;
  const state = run.finished ? "finished" : run.metrics.length || run.trace.length ? "running" : "starting";
  const workers = run.actors.filter(actor => actor.startsWith("worker")).length;
  const cards = [
    ["state", state],
    ["round", whole(row.round)],
    [run.timeName, duration(Number(summary.seconds ?? row.seconds))],
  ];
  const values = {};
  for (const each of run.metrics)
    for (const [key, value] of Object.entries(each))
      if (typeof value === "number" && !COUNTERS.has(key) && key !== "bytes") values[key] = value;
  for (const name of Object.keys(values)
    .filter(each => !each.startsWith("client_"))
    .slice(0, 4))
    cards.push([NAMES[name] || name.replaceAll("_", " "), shown(values[name])]);
  cards.push(
    ["from workers", bytes(row.bytes_up)],
    ["to workers", bytes(row.bytes_down)],
    ["workers", gone ? `${workers}, ${gone} lost` : whole(workers)],
  );
  list.replaceChildren();
  for (const [name, value] of cards) {
    const card = make("div", undefined, list);
    make("dt", name, card);
    make("dd", value, card);
  }
}

function drawWorkers(table, run) {
  const [body] = head(table, ["actor", "state", "presence", "busy", "samples", "calls", "last call"], {
    samples: "number",
    calls: "number",
  });
  const actors = run.actors,
    end = run.seconds || 1;
  for (const actor of actors.slice(0, MAX_ROWS)) {
    const row = make("tr", undefined, body),
      total = run.totals.get(actor),
      gone = run.isGone(actor);
    make("td", actor, row);
    make("td", gone ? "lost" : total ? "up" : "not seen yet", row, gone ? "bad" : total ? "done" : "wait");
    drawPresence(make("td", undefined, row, "strip"), run.states.get(actor) || [], end, actor);
    const share = make("span", undefined, make("td", undefined, row), "share"),
      part = total ? Math.min(1, total.busy / Math.max(end - total.first, 1e-12)) : 0;
    make("i", undefined, share, "compute").style.width = `${100 * part}%`;
    share.title = `${Math.round(100 * part)} %`;
    make("td", whole(total ? total.samples : 0), row, "number");
    make("td", whole(total ? total.calls : 0), row, "number");
    make("td", total ? `at ${duration(total.last)}` : "", row);
  }
  if (actors.length > MAX_ROWS) emptyRow(body, `and ${whole(actors.length - MAX_ROWS)} more`, 7);
  if (!actors.length) emptyRow(body, "no workers yet", 7);
}

function drawPresence(cell, states, end, actor) {
  const picture = draw("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img" }, cell);
  let from = 0,
    here = true,
    present = 0;
  const bar = to => {
    draw("rect", { x: (1000 * from) / end, y: 0, width: Math.max(1, (1000 * (to - from)) / end), height: 10 }, picture);
    present += to - from;
  };
  for (const { seconds, gone } of states) {
    const time = Math.min(Math.max(seconds, 0), end);
    if (here && gone) bar(time);
    if (!here && !gone) from = time;
    here = !gone;
  }
  if (here) bar(end);
  picture.setAttribute("aria-label", `${actor} was there for ${Math.round(100 * Math.min(1, present / end))} % of the run`);
}

function drawTraffic(table, run) {
  // the link of each actor to the network
  const [body] = head(table, ["link of", "sent", "received", "share"], { sent: "number", received: "number" });
  const actors = run.actors.filter(actor => run.totals.has(actor)),
    most = Math.max(1, ...[...run.totals.values()].map(total => total.sent + total.received));
  for (const actor of actors.slice(0, MAX_ROWS)) {
    const row = make("tr", undefined, body),
      total = run.totals.get(actor);
    make("td", actor, row);
    make("td", bytes(total.sent), row, "number");
    make("td", bytes(total.received), row, "number");
    const share = make("span", undefined, make("td", undefined, row), "share");
    make("i", undefined, share, "up").style.width = `${(100 * total.sent) / most}%`;
    make("i", undefined, share, "down").style.width = `${(100 * total.received) / most}%`;
  }
  if (!actors.length) emptyRow(body, "no calls yet", 4);
}

function drawEvents(table, run) {
  const [body] = head(table, ["time", "round", "event", "actor", "detail"], { round: "number" });
  for (const event of run.events.slice(-MAX_ROWS).reverse()) {
    const row = make("tr", undefined, body),
      kind = kindOf(event.event);
    make("td", duration(event.seconds), row);
    make("td", whole(event.round), row, "number");
    make("td", `${SIGNS[kind]} ${event.event}`, row, kind);
    make("td", event.actor, row);
    make("td", event.detail, row, "reason");
  }
  if (!run.events.length) emptyRow(body, "no faults, losses or other events", 5);
}

function clientValues(run) {
  // by metric, the values of the clients: of lists, or of tables by client
  const found = new Map(),
    add = (name, value) => {
      if (typeof value === "number" && Number.isFinite(value)) {
        if (!found.has(name)) found.set(name, []);
        found.get(name).push(value);
      }
    };
  const values = run.clients ? run.clients.values : {};
  for (const [key, each] of Object.entries(values)) {
    if (each !== null && typeof each === "object")
      for (const [name, value] of Object.entries(each)) add(Array.isArray(each) ? key : name, value);
  }
  return found;
}

function drawClients(box, run) {
  box.replaceChildren();
  for (const [name, values] of [...clientValues(run)].slice(0, 6)) {
    const [low, high] = limits(values),
      bins = Math.min(20, Math.max(5, Math.ceil(Math.sqrt(values.length)))),
      counts = new Array(bins).fill(0);
    for (const value of values)
      counts[high > low ? Math.min(bins - 1, Math.floor((bins * (value - low)) / (high - low))) : 0]++;
    const most = Math.max(...counts),
      figure = make("figure", undefined, box),
      caption = make("figcaption", undefined, figure),
      mean = values.reduce((a, b) => a + b, 0) / values.length;
    make("span", `${name.replaceAll("_", " ")} of ${count(values.length, "client")}`, caption);
    make("strong", `mean ${shown(mean)}`, caption);
    const picture = draw("svg", { viewBox: `0 0 ${bins} 100`, preserveAspectRatio: "none", role: "img" }, figure);
    picture.setAttribute("aria-label", `${name} of clients: from ${shown(low)} to ${shown(high)}, mean ${shown(mean)}`);
    picture.style.height = "90px";
    counts.forEach((height, i) => {
      draw(
        "rect",
        { x: i + 0.05, width: 0.9, y: 100 - (96 * height) / most, height: (96 * height) / most },
        picture,
      ).style.fill = SERIES[run.index];
    });
    const ends = make("div", undefined, figure, "ends");
    make("span", shown(low), ends);
    make("span", shown(high), ends);
  }
}
