"use strict";
// The topology: actors as nodes, edges that carry messages. Servers are in the middle, or workers alone on a circle.
const SIDE = 420,
  MAX_NODES = 64;

function placed(workers, others) {
  // workers on a circle; edge servers on an inner one, next to their workers; servers in the middle
  const edges = others.filter(actor => actor.startsWith("edge")),
    inner = others.filter(actor => !edges.includes(actor));
  const middle = SIDE / 2,
    places = new Map(),
    radius = Math.min(24, (0.42 * Math.PI * (middle - 34)) / Math.max(workers.length, 3) + 4);
  const around = (actors, far, turn) =>
    actors.forEach((actor, i) => {
      const angle = turn + (2 * Math.PI * i) / actors.length;
      places.set(actor, [middle + far * Math.sin(angle), middle - far * Math.cos(angle)]);
    });
  const edgeOf = actor => Number(actor.slice(7)) % Math.max(1, edges.length);
  around(
    [...workers].sort((a, b) => edgeOf(a) - edgeOf(b) || byActor(a, b)),
    middle - 34,
    0,
  );
  around(edges, 100, Math.PI * (1 / Math.max(1, edges.length) - 1 / Math.max(1, workers.length)));
  around(inner, inner.length === 1 ? 0 : 62, Math.PI / 4);
  return { places, radius };
}

class Graph {
  constructor(box) {
    this.box = make("div", undefined, box, "graph");
    this.key = "";
  }

  layout(run) {
    // draws nodes and edges if the actors have changed; returns whether there is a graph
    const neighbours = neighboursOf(run),
      actors = [...neighbours.keys()],
      key = JSON.stringify([actors, run.about.edges]);
    if (key === this.key) return this.nodes.size > 0;
    Object.assign(this, { key, neighbours, nodes: new Map(), edges: new Map() });
    this.box.replaceChildren();
    if (!actors.length || actors.length > MAX_NODES) {
      make("p", actors.length ? `a graph of ${actors.length} actors is not drawn` : "no actors yet", this.box, "soft");
      return false;
    }
    const workers = actors.filter(actor => actor.startsWith("worker")),
      others = actors.filter(actor => !actor.startsWith("worker"));
    const { places, radius } = placed(workers, others);
    this.places = places;
    this.picture = draw("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img" }, this.box);
    for (const [actor, near] of neighbours) {
      for (const other of near) {
        if (this.edges.has(edgeKey(actor, other))) continue;
        const [x1, y1] = places.get(actor),
          [x2, y2] = places.get(other);
        const line = draw("line", { x1, y1, x2, y2, class: "edge" }, this.picture),
          title = draw("title", {}, line);
        this.edges.set(edgeKey(actor, other), { line, title, names: [actor, other] });
      }
    }
    this.layer = draw("g", {}, this.picture);
    for (const actor of actors) {
      const [x, y] = places.get(actor),
        isWorker = actor.startsWith("worker"),
        r = isWorker ? radius : 26;
      const shape = isWorker
        ? draw("circle", { cx: x, cy: y, r, class: "node" }, this.picture)
        : draw("rect", { x: x - r, y: y - r * 0.7, width: 2 * r, height: 1.4 * r, rx: 5, class: "node" }, this.picture);
      draw("title", {}, shape).textContent = actor;
      const name = draw("text", { x, y, class: "name" }, this.picture);
      name.textContent = isWorker
        ? actor.slice(7)
        : others.length > 1 || actor.length > 8
          ? actor.replace(/^(\w)\w*/, "$1")
          : "server";
      this.nodes.set(actor, { shape, name });
    }
    return true;
  }

  traffic(totals) {
    // widths of edges, by the bytes that each carried
    const most = Math.max(1, ...totals.values());
    for (const [key, edge] of this.edges) {
      const carried = totals.get(key) || 0;
      edge.line.setAttribute("stroke-width", (1 + 5 * Math.sqrt(carried / most)).toFixed(2));
      edge.line.setAttribute("class", carried ? "edge used" : "edge");
      edge.title.textContent = `${edge.names.join(" – ")}: ${bytes(carried)}`;
    }
  }

  show(run, calls, messages, time, still) {
    // the state at a time: busy actors, and messages on their way
    const busy = new Map();
    for (const call of calls) if (call.start <= time && time < call.end) busy.set(call.actor, call);
    for (const [actor, { shape, name }] of this.nodes) {
      shape.setAttribute("class", busy.has(actor) ? "node busy" : run.isGone(actor) ? "node gone" : "node");
      name.setAttribute("class", busy.has(actor) ? "name busy" : "name");
    }
    this.layer.replaceChildren();
    let moving = 0;
    for (const message of messages) {
      if (message.begin > time || message.end < time || !(message.end > message.begin)) continue;
      const [x1, y1] = this.places.get(message.from),
        [x2, y2] = this.places.get(message.to),
        part = (time - message.begin) / (message.end - message.begin);
      const dot = draw("circle", { cx: x1 + part * (x2 - x1), cy: y1 + part * (y2 - y1), r: 6, class: "message" }, this.layer);
      draw("title", {}, dot).textContent = `${message.from} → ${message.to}: ${bytes(message.bytes)}`;
      moving++;
    }
    if (still)
      this.picture.setAttribute(
        "aria-label",
        `${count(this.nodes.size, "actor")}, ${count(this.edges.size, "edge")}: ` +
          `${busy.size} busy, ${count(moving, "message")} on the way`,
      );
  }
}

const edgeKey = (a, b) => (byActor(a, b) <= 0 ? `${a}\n${b}` : `${b}\n${a}`);
