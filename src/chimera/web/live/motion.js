"use strict";
// Slow motion: a clock over the calls of a run, moved by one event at a time or played at a fraction of the run's speed.
// An event is the start or the end of a call of a round. Without slow motion the graph repeats the last round.
const MAX_CALLS = 50000,
  REPEAT_MS = 4000,
  FRAME_MS = 80; // few frames: the browser may share its cores with the run
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

class Calls {
  // the calls of a run from its beginning, read as far as the clock needs them
  constructor(run) {
    Object.assign(this, { run, clock: new OneClock(), calls: [], events: [], at: 0, size: 1, last: undefined, pending: null });
  }

  more() {
    // returns false at the end of the file
    this.pending ||= this.read().finally(() => {
      this.pending = null;
    });
    return this.pending;
  }

  async read() {
    if (this.at >= this.size && this.size === this.last) return false;
    if (this.calls.length >= MAX_CALLS) return false;
    const found = await rowsOf(this.run.index, "trace", `at=${this.at}`);
    if (found.restarted) {
      Object.assign(this, { clock: new OneClock(), calls: [], events: [], at: 0, size: 1, last: undefined });
      return true;
    }
    Object.assign(this, { at: found.at, size: found.size, last: found.size });
    const placed = found.rows.map(row => this.clock.place(row)).filter(Boolean);
    if (!placed.length) return false;
    this.calls.push(...placed);
    this.calls.sort((a, b) => a.start - b.start);
    this.events = this.calls
      .filter(call => !BETWEEN.has(call.call))
      .flatMap(call => [
        { time: call.start, call, what: "start" },
        { time: call.end, call, what: "end" },
      ])
      .sort((a, b) => a.time - b.time || (a.what < b.what ? -1 : 1));
    return true;
  }

  follow() {
    this.last = undefined; // look for rows that were written since
  }
}

class Motion {
  constructor(box, run) {
    Object.assign(this, {
      run,
      slow: false,
      playing: null,
      place: 0,
      time: 0,
      frame: 0,
      calls: null,
      steps: Promise.resolve(),
    });
    const area = make("div", undefined, box, "motion");
    this.graph = new Graph(area);
    const side = make("div", undefined, area);
    this.note = make("p", undefined, side, "soft");
    const controls = make("div", undefined, side, "controls");
    controls.setAttribute("role", "group");
    controls.setAttribute("aria-label", "slow motion");
    const button = (text, act, title) => {
      const made = make("button", text, controls);
      made.onclick = act;
      if (title) made.title = title;
      return made;
    };
    this.mode = button("Slow motion", () => this.toggle());
    this.buttons = [
      button("To the start", () => this.go(0)),
      button("Back", () => this.step(-1), "go back by one event"),
      button("Step", () => this.step(1), "go to the next event"),
      button("Play", () => (this.playing ? this.pause() : this.play())),
    ];
    this.player = this.buttons[3];
    const label = make("label", "Speed ", controls);
    this.speed = make("select", undefined, label);
    for (const slower of [1, 3, 10, 30, 100, 300, 1000, 3000, 10000])
      make("option", slower === 1 ? "1" : `1/${slower.toLocaleString("en")}`, this.speed).value = String(1 / slower);
    this.watch = make("div", undefined, side, "clock");
    this.now = make("span", undefined, this.watch, "now");
    this.which = make("small", undefined, this.watch, "which");
    this.slider = make("input", undefined, side, "place");
    Object.assign(this.slider, { type: "range", min: 0, value: 0 });
    this.slider.setAttribute("aria-label", "event");
    this.slider.oninput = () => this.go(Number(this.slider.value));
    this.said = make("p", undefined, side, "said");
    this.said.setAttribute("aria-live", "polite");
    this.onmove = this.oncontrols = () => {};
    this.controls();
  }

  controls() {
    for (const each of [...this.buttons, this.speed, this.slider]) each.disabled = !this.slow;
    this.mode.textContent = this.slow ? "Back to live" : "Slow motion";
    this.player.textContent = this.playing ? "Pause" : "Play";
    this.watch.hidden = this.slider.hidden = this.said.hidden = !this.slow;
    this.oncontrols();
  }

  async toggle() {
    this.slow = !this.slow;
    this.pause();
    if (this.slow) {
      this.calls = new Calls(this.run);
      await this.calls.more();
      const per = (Number(this.run.last.seconds) || 1) / (Number(this.run.last.round) || 1),
        options = [...this.speed.options].map(each => Number(each.value));
      this.speed.value = String(options.find(each => each <= per / 6) ?? options[options.length - 1]); // about 6 s a round
      await this.go(0);
    }
    this.controls();
    this.update();
    this.onmove();
  }

  async go(place) {
    // to the state after so many events; waits for the calls that it needs
    while (place > this.calls.events.length - 200 && (await this.calls.more()));
    this.place = Math.max(0, Math.min(place, this.calls.events.length));
    this.time = this.place ? this.calls.events[this.place - 1].time : 0;
    this.say();
    this.refresh();
    this.onmove();
  }

  async goTo(time) {
    // to a time, between events
    await this.go(this.calls.events.filter(event => event.time <= time).length);
    this.time = time;
    this.refresh();
  }

  step(by) {
    // one after the other, also if clicks come faster than pieces of the trace
    this.pause();
    this.calls.follow();
    this.steps = this.steps.then(() => this.go(this.place + by));
    return this.steps;
  }

  say() {
    const event = this.calls.events[this.place - 1];
    if (!event) {
      this.said.textContent = "Before the first event. Step goes to the next start or end of a call.";
      return;
    }
    const { call, what } = event;
    this.said.textContent =
      what === "start"
        ? `${call.actor} starts ${call.call}` +
          (call.received > LEAST_BYTES ? ` with ${bytes(call.received)}` : "") +
          (call.transfer > 0 ? `, after ${duration(call.transfer)} of transfer` : "")
        : `${call.actor} ends ${call.call} after ${duration(call.end - call.start)}` +
          (call.sent > LEAST_BYTES ? `; its result has ${bytes(call.sent)}` : "") +
          (call.error ? `; error: ${call.error}` : "");
  }

  async play() {
    const own = (this.playing = {}); // an earlier loop, which may still wait for its next frame, ends
    this.controls();
    let before = performance.now();
    while (this.playing === own) {
      await pause(CALM.matches ? 500 : FRAME_MS / 2);
      if (this.playing !== own) return;
      const now = performance.now();
      if (CALM.matches)
        await this.go(this.place + 1); // by whole events
      else await this.advance((Number(this.speed.value) * (now - before)) / 1000);
      before = now;
      if (this.place >= this.calls.events.length && !(await this.more())) this.pause();
    }
  }

  async advance(seconds) {
    const time = this.time + seconds,
      events = this.calls.events,
      place = this.place;
    while (this.place < events.length && events[this.place].time <= time) this.place++;
    if (this.place > events.length - 200) await this.calls.more();
    this.time = this.place >= this.calls.events.length && this.place ? this.calls.events[this.place - 1].time : time;
    if (place !== this.place) this.said.textContent = "";
    this.refresh();
    this.onmove();
  }

  more() {
    this.calls.follow();
    return this.calls.more();
  }

  pause() {
    if (this.playing && this.calls) this.say();
    this.playing = null;
    this.controls();
  }

  refresh() {
    this.slider.max = String(this.calls.events.length);
    this.slider.value = String(this.place);
    this.now.textContent = duration(this.time);
    this.which.textContent =
      `${this.run.timeName} · event ${whole(this.place)} of ${whole(this.calls.events.length)}` +
      (this.calls.calls.length >= MAX_CALLS ? " (the first ones)" : "");
    if (!this.graph.layout(this.run)) return;
    const [begin, end] = this.window(),
      calls = inWindow(this.calls.calls, begin, end);
    const known = `${this.calls.calls.length} ${this.graph.key}`;
    if (this.known !== known) {
      this.known = known;
      this.messages = messagesOf(this.calls.calls, this.graph.neighbours);
    }
    this.graph.show(this.run, calls, this.messages, this.time, !this.playing);
  }

  window() {
    // about one round around the clock
    const round = (Number(this.run.last.seconds) || this.run.seconds || 1) / (Number(this.run.last.round) || 1),
      width = 1.5 * round;
    const begin = Math.max(0, this.time - width / 2);
    return [begin, begin + width];
  }

  update() {
    // new rows of the run
    const { run } = this;
    this.note.textContent = run.about.drawn ? `${run.about.drawn} Dots are messages, derived from the calls of the trace.` : "";
    if (!this.graph.layout(run)) return;
    const [from, to] = lastRounds(run, 1),
      round = inWindow(run.trace, from, to).filter(call => !BETWEEN.has(call.call) && call.start >= from);
    const [begin] = limits(round.map(call => call.start - call.transfer)),
      [, end] = limits(round.map(call => call.end));
    const recent = inWindow(run.trace, begin - (end - begin), end).sort((a, b) => a.start - b.start);
    const messages = messagesOf(recent, this.graph.neighbours),
      totals = new Map();
    for (const message of messagesOf(
      run.trace.slice().sort((a, b) => a.start - b.start),
      this.graph.neighbours,
    )) {
      const key = edgeKey(message.from, message.to);
      totals.set(key, (totals.get(key) || 0) + message.bytes);
    }
    this.graph.traffic(totals);
    this.repeated = { begin, end, recent, messages };
    if (!this.slow && !this.frame && round.length) this.repeat();
  }

  repeat() {
    // repeats the last round, unless the user prefers no motion
    const { begin, end, recent, messages } = this.repeated;
    if (CALM.matches || document.hidden || this.slow) {
      this.frame = 0;
      if (!this.slow) this.graph.show(this.run, recent, messages, (begin + end) / 2, true);
      return;
    }
    this.graph.show(this.run, recent, messages, begin + ((end - begin) * (performance.now() % REPEAT_MS)) / REPEAT_MS, false);
    this.frame = setTimeout(() => this.repeat(), FRAME_MS);
  }
}

function inWindow(calls, begin, end) {
  return calls.filter(call => call.end >= begin && call.start <= end);
}
