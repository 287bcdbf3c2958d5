"use strict";
// The timeline: one lane for each actor, divided into computation, transfer and waiting, as in the report.
const MAX_LANES = 24,
  BINS = 500;

function segmentsOf(calls) {
  // yields [kind, begin, end] of an actor; see chimera.report.timeline.segments
  const found = [];
  let reached = null;
  for (const call of calls) {
    const previous = reached ?? call.start - Math.min(call.transfer, Math.max(call.start, 0));
    const start = Math.max(call.start, previous),
      end = Math.max(call.end, start);
    const before = Math.min(call.transfer, start - previous),
      waiting = Math.min(call.wait, end - start);
    const inside = Math.min(call.transfer - before, end - start - waiting),
      computed = Math.max(end - waiting - inside, start);
    found.push(
      ["idle", previous, start - before],
      ["transfer", start - before, start],
      ["compute", start, computed],
      ["transfer", computed, end - waiting],
      ["idle", end - waiting, end],
    );
    reached = end;
  }
  return found.filter(([, a, b]) => b > a);
}

function lanesIn(trace, begin, end) {
  // calls by actor in a window, in order of their start
  const lanes = new Map();
  for (const call of trace) {
    if (call.end < begin || call.start - call.transfer > end) continue;
    if (!lanes.has(call.actor)) lanes.set(call.actor, []);
    lanes.get(call.actor).push(call);
  }
  for (const calls of lanes.values()) calls.sort((a, b) => a.start - b.start);
  return lanes;
}

function selected(actors, run) {
  // all if they fit; else lost ones, servers, and evenly spaced workers
  if (actors.length <= MAX_LANES) return actors;
  const first = actors.filter(actor => run.isGone(actor) || !actor.startsWith("worker")).slice(0, MAX_LANES / 2);
  const rest = actors.filter(actor => !first.includes(actor)),
    room = MAX_LANES - first.length;
  return [...first, ...Array.from({ length: room }, (_, i) => rest[Math.floor((i * rest.length) / room)])].sort(byActor);
}

function drawLane(parent, actor, segments, begin, end, shares) {
  const lane = make("div", undefined, parent, "lane"),
    width = end - begin || 1;
  make("span", actor, lane, "actor").title = actor;
  const track = make("div", undefined, lane, "track");
  const picture = draw("svg", { viewBox: `0 0 ${BINS} 1`, preserveAspectRatio: "none", role: "img" }, track),
    paths = { idle: "", transfer: "", compute: "" };
  const x = time => ((BINS * (time - begin)) / width).toFixed(2);
  for (const [kind, from, to] of segments) {
    const low = Math.max(from, begin),
      high = Math.min(to, end);
    if (high <= low) continue;
    shares[kind] += high - low;
    paths[kind] += `M${x(low)} 0H${x(high)}V1H${x(low)}Z`;
  }
  for (const [kind, d] of Object.entries(paths)) if (d) draw("path", { d, class: kind }, picture);
  const share = kind => `${Math.round((100 * shares[kind]) / width)} %`;
  picture.setAttribute("aria-label", `${actor}: computes ${share("compute")}, transfers ${share("transfer")}`);
  return track;
}

function drawTimeline(box, run, trace, begin, end, clock) {
  box.replaceChildren();
  const lanes = lanesIn(trace, begin, end),
    actors = selected(
      [...new Set([...lanes.keys(), ...[...run.states.keys()].filter(actor => run.totals.has(actor))])].sort(byActor),
      run,
    );
  if (!actors.length || !(end > begin)) {
    make("p", run.exists ? "no calls yet" : "the run has not started", box, "soft");
    return;
  }
  for (const actor of actors) {
    const track = drawLane(box, actor, segmentsOf(lanes.get(actor) || []), begin, end, { idle: 0, transfer: 0, compute: 0 });
    for (const event of run.events) {
      if (event.actor !== actor || event.seconds < begin || event.seconds > end) continue;
      const kind = kindOf(event.event),
        sign = make("span", SIGNS[kind], track, `sign ${kind}`);
      sign.style.left = `${(100 * (event.seconds - begin)) / (end - begin)}%`;
      sign.title = `${event.event}, round ${event.round}: ${event.detail}`;
    }
    if (clock !== undefined) make("span", undefined, track, "head").style.left = `${(100 * (clock - begin)) / (end - begin)}%`;
  }
  const scale = make("div", undefined, box, "scale");
  for (const part of [0, 0.5, 1]) make("span", duration(begin + part * (end - begin)), scale).style.left = `${100 * part}%`;
  if (run.totals.size > actors.length) make("p", `${actors.length} of ${run.totals.size} lanes are drawn`, box, "soft");
}

function lastRounds(run, rounds) {
  // the window of the last rounds, by the times of the rows of metrics
  const rows = run.metrics,
    last = rows[rows.length - 1],
    end = run.seconds;
  if (!last) return [run.trace.length ? run.trace[0].start : 0, run.clock.horizon];
  if (rounds === "all") return [run.trace.length ? Math.min(run.trace[0].start, end) : 0, end];
  let before = { round: 0, seconds: 0 };
  for (const row of rows) if (row.round <= last.round - rounds) before = row;
  const kept = run.trace.length ? run.trace[0].start : 0;
  return [Math.max(Number(before.seconds) || 0, run.trace.length === MOST.trace ? kept : 0), end];
}

function timelineLegend(box) {
  const legend = make("div", undefined, box, "legend");
  for (const [kind, text] of [
    ["compute", "computation"],
    ["transfer", "transfer"],
    ["idle", "waiting"],
  ]) {
    const entry = make("span", undefined, legend);
    mark(`var(--${kind})`, entry);
    entry.append(text);
  }
  for (const [kind, text] of [
    ["lost", "lost"],
    ["back", "back"],
    ["fault", "fault"],
  ]) {
    const entry = make("span", undefined, legend);
    make("b", SIGNS[kind], entry, kind);
    entry.append(` ${text}`);
  }
}
