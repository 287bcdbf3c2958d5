"use strict";
// The page: one part for each run, and the loop that follows their files.
const POLL_MS = 1000;
let views = [],
  ended = false;

class RunView {
  constructor(run, parent) {
    this.run = run;
    const article = make("article", undefined, parent),
      title = make("h2", undefined, article);
    mark(SERIES[run.index], title);
    this.name = make("span", undefined, title);
    this.about = make("small", undefined, title);
    this.note = make("p", undefined, article, "soft");
    this.cards = make("dl", undefined, article, "cards");
    const part = (name, into = article) => {
      const made = make("section", undefined, into),
        bar = make("div", undefined, made, "bar");
      make("h2", name, bar);
      return [made, bar];
    };
    const table = (name, into) => {
      const [made] = part(name, into),
        scroll = make("div", undefined, made, "scroll tall");
      scroll.tabIndex = 0;
      scroll.setAttribute("role", "region");
      scroll.setAttribute("aria-label", name);
      return make("table", undefined, scroll);
    };
    const [lanes, bar] = part("Timeline");
    const label = make("label", "Show ", bar);
    this.rounds = make("select", undefined, label);
    for (const [value, text] of [
      ["3", "the last 3 rounds"],
      ["10", "the last 10 rounds"],
      ["30", "the last 30 rounds"],
      ["all", "all calls that are kept"],
    ])
      make("option", text, this.rounds).value = value;
    this.rounds.onchange = () => this.drawLanes();
    timelineLegend(lanes);
    this.lanes = make("div", undefined, lanes);
    const [graph] = part("Messages");
    this.motion = new Motion(graph, run);
    this.motion.onmove = () => this.drawLanes();
    const pair = make("div", undefined, article, "pair");
    this.workers = table("Workers and servers", pair);
    this.traffic = table("Traffic of each link", pair);
    this.partial = make("p", undefined, this.traffic.parentElement.parentElement, "soft");
    this.events = table("Faults and events", article);
    const [clients] = part("Spread over clients");
    this.clients = clients;
    this.clientBox = make("div", undefined, clients, "grid");
  }

  drawLanes() {
    const { run, motion } = this;
    if (motion.slow) {
      const [begin, end] = motion.window();
      drawTimeline(this.lanes, run, motion.calls.calls, begin, end, motion.time);
    } else
      drawTimeline(
        this.lanes,
        run,
        run.trace,
        ...lastRounds(run, this.rounds.value === "all" ? "all" : Number(this.rounds.value)),
      );
  }

  draw() {
    const { run } = this,
      missing =
        run.metrics.length && !run.trace.length ? "The run has no trace: timeline, messages and traffic are not shown. " : "";
    this.name.textContent = run.name;
    this.about.textContent = [run.about.strategy, run.about.virtual ? "simulated, virtual time" : ""]
      .filter(Boolean)
      .join(" · ");
    this.note.textContent =
      missing +
      [...(run.about.notes || []), run.note, run.exists ? "" : "The folder of the run does not exist yet."]
        .filter(Boolean)
        .join(" ");
    drawCards(this.cards, run);
    if (!this.motion.slow) this.drawLanes();
    this.motion.update();
    drawWorkers(this.workers, run);
    drawTraffic(this.traffic, run);
    this.partial.textContent =
      "A result that several actors receive counts once for its sender." +
      (run.partial ? " Only a part of the calls is counted: the trace is long." : "");
    drawEvents(this.events, run);
    this.clients.hidden = !run.clients;
    if (run.clients) drawClients(this.clientBox, run);
  }
}

async function follow() {
  const state = await (await request(`v1/live/state${ended ? "?end" : ""}`)).json();
  if (ended) {
    showStatus("the process that served this page has ended; 'chimera watch' shows the run again");
    return false;
  }
  if (!views.length) {
    const parent = at("runs");
    parent.style.setProperty("--columns", String(Math.min(state.runs.length, 2)));
    parent.className = state.runs.length === 1 ? "one" : "";
    views = state.runs.map((each, index) => new RunView(new FollowedRun(index, each.name), parent));
    new Together(views.map(view => view.motion));
  }
  let any = false;
  for (const [i, view] of views.entries()) {
    if (await view.run.update(state.runs[i])) {
      view.draw();
      any = true;
    }
  }
  if (any)
    drawCurves(
      views.map(view => view.run),
      at("x").value,
    );
  const finished = views.filter(view => view.run.finished).length;
  document.title = views.length === 1 ? `${views[0].run.name} – Chimera run` : `${views.length} Chimera runs`;
  showStatus(`live · ${count(views.length, "run")}, ${finished} finished`);
  if (state.ended) {
    ended = true;
    await follow();
    return false;
  }
  return true;
}

at("x").onchange = () =>
  drawCurves(
    views.map(view => view.run),
    at("x").value,
  );
keep(follow, POLL_MS, "this page", "no answer; trying again …");
