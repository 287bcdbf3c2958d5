"use strict";
// Messages between actors, derived from the trace: a call that received bytes took them from neighbours whose calls had ended.
const LEAST_BYTES = 64; // smaller values are control messages

function neighboursOf(run) {
  // by actor, the actors whose results it receives
  const actors = run.actors,
    workers = actors.filter(actor => /^worker \d+$/.test(actor)),
    found = new Map(actors.map(actor => [actor, []]));
  const join = (a, b) => {
    if (found.has(a) && found.has(b)) {
      found.get(a).push(b);
      found.get(b).push(a);
    }
  };
  const others = actors.filter(actor => !workers.includes(actor));
  for (const [i, j] of run.about.edges || []) {
    if (!run.about.directed) join(`worker ${i}`, `worker ${j}`);
    else if (found.has(`worker ${i}`) && found.has(`worker ${j}`)) found.get(`worker ${j}`).push(`worker ${i}`);
  }
  const edges = others.filter(actor => actor.startsWith("edge")),
    servers = others.filter(actor => !actor.startsWith("edge"));
  for (const worker of workers) {
    const rank = Number(worker.slice(7));
    if (edges.length) join(worker, edges[rank % edges.length]);
    else for (const server of servers) join(worker, server);
  }
  for (const edge of edges) for (const server of servers) join(edge, server);
  return found;
}

// When the result of a call left: a worker that exchanges messages within a call waits at its end, after it has sent its own.
const leftAt = call => (call.actor.startsWith("worker") ? call.end - call.wait : call.end);

function latest(outputs, time) {
  // the last output that had left by then; outputs are in order of that time
  let low = 0,
    high = outputs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (leftAt(outputs[middle]) <= time + 1e-9) low = middle + 1;
    else high = middle;
  }
  return outputs[low - 1];
}

function messagesOf(calls, neighbours) {
  // calls in order of their start; returns {from, to, begin, end, bytes, call}
  const outputs = new Map([...neighbours.keys()].map(actor => [actor, []])),
    taken = new Map(),
    found = [];
  for (const call of calls) if (call.sent > LEAST_BYTES && outputs.has(call.actor)) outputs.get(call.actor).push(call);
  for (const each of outputs.values()) each.sort((a, b) => leftAt(a) - leftAt(b));
  const shares = new Map(
    [...neighbours].map(([actor, others]) => [
      actor,
      actor.startsWith("worker") ? Math.max(1, others.filter(o => o.startsWith("server")).length) : 1,
    ]),
  );
  for (const call of calls) {
    if (call.received <= LEAST_BYTES) continue;
    const others = neighbours.get(call.actor) || [],
      until = call.wait > 0 ? call.end : call.start;
    const senders = others
      .map(other => latest(outputs.get(other), until))
      .filter(output => output && (taken.get(`${output.actor}\n${call.actor}`) ?? -1) < leftAt(output))
      .sort((a, b) => leftAt(a) - leftAt(b));
    let room = call.received * 1.1;
    for (const output of senders) {
      const size = output.sent / shares.get(output.actor),
        begin = leftAt(output);
      if (room < Math.min(size, call.received / 2)) break;
      room -= size;
      taken.set(`${output.actor}\n${call.actor}`, begin);
      found.push({
        from: output.actor,
        to: call.actor,
        begin,
        end: begin <= call.start ? call.start : call.end,
        bytes: Math.min(size, call.received),
        call: call.call,
      });
    }
    const peers = others.filter(other => other.startsWith("worker"));
    if (!senders.length && call.transfer + call.wait > 0 && call.sent > LEAST_BYTES) {
      // an exchange within the call, such as an all-reduce
      for (const other of peers)
        found.push({
          from: other,
          to: call.actor,
          begin: Math.max(call.start, call.end - call.transfer - call.wait),
          end: call.end,
          bytes: call.received / peers.length,
          call: call.call,
        });
    }
  }
  return found;
}
