"use strict";
// The rows of one run: read in pieces as its files grow, and kept in bounded memory.
const MAX_ACTORS = 20000;
const MOST = { metrics: 4000, events: 1000, trace: 20000 };
const TAIL_BYTES = 1 << 20,
  PIECES = 8,
  MAX_BEHIND = 8 << 20;
const COUNTERS = new Set([
  "round",
  "epoch",
  "samples",
  "seconds",
  "bytes_up",
  "bytes_down",
  "lost_rounds",
  "elements_up",
  "packed_up",
  "elements_down",
  "packed_down",
  "tokens",
  "flops",
  "clients",
]);
// Calls that a run makes between rounds, such as snapshots; the report does not count their bytes either.
const BETWEEN = new Set([
  "tally",
  "buffers",
  "load_buffers",
  "state",
  "codec_states",
  "local_state",
  "personal",
  "evaluate",
  "step",
  "mean",
  "consensus_distance",
  "go_to",
  "reduce_rates",
  "follow",
  "known",
  "attack",
  "stands_at",
  "remembers",
  "forget_answer",
]);

async function rowsOf(run, file, query) {
  // lines that are not JSON objects are skipped
  const answer = await request(`v1/live/rows?run=${run}&file=${file}&${query}`),
    text = await answer.text(),
    rows = [];
  for (const line of text.split("\n")) {
    if (!line) continue;
    try {
      const row = JSON.parse(line);
      if (row !== null && typeof row === "object") rows.push(row);
    } catch (error) {
      continue;
    }
  }
  const number = name => Number(answer.headers.get(`Chimera-${name}`));
  return { rows, at: number("At"), size: number("Size"), restarted: number("Restarted") === 1, bytes: text.length };
}

// A number of a run's file; NaN if it is none, or too large for sums and differences.
const bounded = value => (typeof value === "number" && Math.abs(value) < 1e15 ? value : NaN);
const positive = value => Math.max(0, bounded(value)) || 0;

class OneClock {
  // a resumed run may start its clock again: its rows follow the earlier ones
  constructor() {
    this.latest = new Map();
    this.shift = 0;
    this.horizon = 0;
  }
  place(row) {
    const start = bounded(row.start_s),
      end = bounded(row.end_s),
      actor = String(row.actor);
    if (Number.isNaN(start + end)) return null;
    if (start + this.shift < (this.latest.get(actor) ?? -Infinity) - 1e-6) this.shift = this.horizon;
    const call = String(row.call),
      counts = BETWEEN.has(call) ? 0 : 1;
    const placed = {
      actor,
      call,
      start: start + this.shift,
      end: Math.max(start, end) + this.shift,
      transfer: positive(row.transfer_s),
      wait: positive(row.wait_s),
      received: counts * positive(row.bytes_in),
      sent: counts * positive(row.bytes_out),
      samples: positive(row.samples),
      error: row.error ? String(row.error) : "",
    };
    this.latest.set(actor, placed.start);
    this.horizon = Math.max(this.horizon, placed.end);
    return placed;
  }
}

class FollowedRun {
  constructor(index, name) {
    Object.assign(this, { index, name, version: null, note: "", exists: false, about: {} });
    for (const file of Object.keys(MOST)) this.clear(file);
  }

  clear(file) {
    (this.at ||= {})[file] = null;
    this[file] = [];
    if (file === "metrics") this.clients = null;
    if (file === "events") this.states = new Map(); // by actor: [{seconds, gone}, ...]
    if (file === "trace") {
      this.clock = new OneClock();
      this.totals = new Map();
      this.partial = false;
    }
  }

  async update(state) {
    // returns whether anything changed
    let changed = this.note !== state.note || this.exists !== state.exists;
    Object.assign(this, { name: state.name, note: state.note, exists: state.exists });
    if (state.version !== this.version) {
      this.about = await (await request(`v1/live/run?run=${this.index}`)).json();
      this.version = state.version;
      changed = true;
    }
    for (const file of Object.keys(MOST)) changed = (await this.read(file)) || changed;
    return changed;
  }

  async read(file) {
    let changed = false;
    for (let piece = 0; piece < PIECES; piece++) {
      const first = this.at[file] === null,
        tail = first && file !== "metrics";
      const found = await rowsOf(this.index, file, tail ? `last=${TAIL_BYTES}` : `at=${this.at[file] ?? 0}`);
      if (found.restarted) {
        this.clear(file);
        changed = true;
      }
      if (tail && file === "trace") this.partial ||= found.size > TAIL_BYTES;
      this.at[file] = found.size || found.at ? found.at : null;
      for (const row of found.rows) this.add(file, row);
      changed = changed || found.rows.length > 0;
      if (!found.rows.length || found.at >= found.size) break;
      // A run that writes faster than the page reads: continue near the end.
      if (file === "trace" && found.size - found.at > MAX_BEHIND) {
        this.at.trace = null;
        this.partial = true;
      }
    }
    if (this[file].length > MOST[file]) {
      const rows = this[file];
      this[file] =
        file === "metrics" ? rows.filter((_, i) => i % 2 === 0 || i === rows.length - 1) : rows.slice(rows.length - MOST[file]);
    }
    return changed;
  }

  add(file, row) {
    if (file === "trace") this.addCall(row);
    if (file === "events") this.addEvent(row);
    if (file === "metrics") {
      if (row.clients && typeof row.clients === "object") {
        this.clients = { round: row.round, values: row.clients };
        delete row.clients;
      }
      for (const name of COUNTERS) if (name in row) row[name] = bounded(row[name]);
      row.bytes = positive(row.bytes_up) + positive(row.bytes_down);
      this.metrics.push(row);
    }
  }

  addCall(row) {
    const call = this.clock.place(row);
    if (!call || (!this.totals.has(call.actor) && this.totals.size >= MAX_ACTORS)) return;
    this.trace.push(call);
    if (!this.totals.has(call.actor))
      this.totals.set(call.actor, { received: 0, sent: 0, samples: 0, calls: 0, busy: 0, first: call.start, last: call.end });
    const total = this.totals.get(call.actor);
    total.received += call.received;
    total.sent += call.sent;
    total.samples += call.samples;
    total.calls++;
    total.busy += Math.max(0, call.end - call.start - call.wait);
    total.last = Math.max(total.last, call.end);
  }

  addEvent(row) {
    const event = {
      event: String(row.event),
      seconds: bounded(row.seconds),
      round: bounded(row.round),
      actor: String(row.actor ?? ""),
      detail: String(row.detail ?? ""),
    };
    this.events.push(event);
    const kind = kindOf(event.event);
    if (!event.actor || (kind !== "lost" && kind !== "back") || Number.isNaN(event.seconds)) return;
    if (!this.states.has(event.actor) && this.states.size < MAX_ACTORS) this.states.set(event.actor, []);
    if (!this.states.has(event.actor)) return;
    this.states.get(event.actor).push({ seconds: event.seconds, gone: kind === "lost" });
  }

  get actors() {
    // workers, servers, others, each by number; there can be thousands, so the list is kept
    const size = `${this.totals.size} ${this.states.size} ${this.about.workers}`;
    if (this.known !== size) {
      const names = new Set([...this.totals.keys(), ...this.states.keys()]);
      for (let i = 0; i < Math.min(this.about.workers || 0, 1000); i++) names.add(`worker ${i}`);
      Object.assign(this, { known: size, names: [...names].sort(byActor) });
    }
    return this.names;
  }

  isGone(actor) {
    const states = this.states.get(actor);
    return Boolean(states && states[states.length - 1].gone);
  }
  get last() {
    return this.metrics[this.metrics.length - 1] || {};
  }
  get seconds() {
    return Math.max(Number(this.last.seconds) || 0, this.clock.horizon);
  }
  get finished() {
    return Object.keys(this.about.summary || {}).length > 0;
  }
  get timeName() {
    return this.about.virtual ? "virtual time" : "time";
  }
}

function kindOf(name) {
  if (/lost|dropped/.test(name)) return "lost";
  if (/respawned|joined|restored|rebuilt|went back/.test(name)) return "back";
  return /fault|attack|rejected/.test(name) ? "fault" : "other";
}
const SIGNS = { lost: "✕", back: "▲", fault: "▼", other: "●" };

function byActor(a, b) {
  const key = actor => {
    const found = /^(.*?)\s*(\d+)$/.exec(actor) || [null, actor, "-1"];
    return [{ worker: 0, server: 1 }[found[1].split(" ")[0]] ?? 2, found[1], Number(found[2])];
  };
  const [x, y] = [key(a), key(b)];
  return x[0] - y[0] || x[1].localeCompare(y[1]) || x[2] - y[2];
}
