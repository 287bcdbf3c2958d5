"use strict";
// Curves of all runs, one chart for each value, over rounds, time, bytes or samples.
const X = {
  round: ["round", whole],
  seconds: ["time", duration],
  bytes: ["bytes of all workers, both ways", bytes],
  samples: ["samples", whole],
};
const NAMES = { train_loss: "training loss", loss: "loss, test set", consensus_distance: "consensus distance" };
const MAX_CHARTS = 12;

function valuesOf(runs) {
  // names of curves: the training loss first, then metrics in the order of their appearance
  const names = new Set();
  for (const run of runs) {
    for (const row of run.metrics) {
      for (const [key, value] of Object.entries(row))
        if (typeof value === "number" && !COUNTERS.has(key) && key !== "bytes") names.add(key);
    }
  }
  return ["train_loss", ...[...names].filter(name => name !== "train_loss")]
    .filter(name => names.has(name))
    .slice(0, MAX_CHARTS);
}

function drawCurves(runs, x) {
  const box = at("charts");
  if (box.contains(document.activeElement)) return; // a chart that is read with the keyboard is not redrawn
  box.replaceChildren();
  at("legend").replaceChildren();
  if (runs.length > 1)
    for (const run of runs) {
      const entry = make("span", undefined, at("legend"));
      mark(SERIES[run.index], entry);
      entry.append(run.name);
    }
  const [xName, xLabel] = X[x];
  for (const name of valuesOf(runs)) {
    const series = runs.map(run => ({
      name: runs.length > 1 ? run.name : NAMES[name] || name,
      color: SERIES[run.index],
      points: run.metrics
        .filter(row => typeof row[name] === "number" && typeof row[x] === "number")
        .map(row => [row[x], row[name]])
        .sort((a, b) => a[0] - b[0]),
    }));
    const title = NAMES[name] || name.replaceAll("_", " ");
    const virtual = x === "seconds" && runs.some(run => run.about.virtual) ? "virtual time" : xName;
    lineChart(box, title, series, { xLabel, xName: virtual });
  }
  if (!box.children.length) make("p", "no measurements yet", box, "soft");
}
