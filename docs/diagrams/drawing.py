"""Drawings of recorded runs as SVG: a lane for each actor, boxes for computations, arrows for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from recording import Message, Recording, Work

WIDTH, LEFT, RIGHT, TOP, LANE, BOX = 580, 76, 12, 12, 40, 22
SCALE = 1.2  # of the drawing on a wide page; on a narrow one, browsers shrink it
SMALL = 64
"""Bytes of a message up to which it has numbers only, and is not drawn."""
ADMINISTRATIVE = {"weights", "model", "state", "mean", "consensus_distance", "go_to", "tally", "buffers", "evaluate"}
LETTER = 6.4  # width of a letter of a label in a box, in pixels

STYLE = """
svg { --page: #ffffff; --text: #1b1f24; --line: #8b929c; --box: #d6e4f5; --edge: #4d7eb8; --servers: #f6e3c5; --rim: #a9761f;
  --gradients: #1f5fbf; --weights: #a24a00; --changes: #0b6b46; --models: #7a1fbf; --activations: #b0165c; --sums: #0f6a78;
  --keys: #5a5f68; }
@media (prefers-color-scheme: dark) { svg { --page: #1a1c20; --text: #e8eaed; --line: #7f8792; --box: #24405f;
  --edge: #7fb0e6; --servers: #55401c; --rim: #d9a74f; --gradients: #8ab8ff; --weights: #ffb266; --changes: #66d9a3;
  --models: #cfa3ff; --activations: #ff94c2; --sums: #6fd3e3; --keys: #b9bec7; } }
text { font: 12px system-ui, sans-serif; fill: var(--text); } .in { font-size: 11px; text-anchor: middle; }
.lane { stroke: var(--line); stroke-dasharray: 2 4; } .work { fill: var(--box); stroke: var(--edge); }
.step { fill: var(--servers); stroke: var(--rim); } .sum { fill: var(--page); stroke: var(--sums); }
"""

KINDS = {
    "gradients": "gradients",
    "weights": "weights",
    "changes": "changes of weights",
    "models": "models",
    "activations": "activations and their gradients",
    "sums": "parts of sums",
    "keys": "keys, shares of secrets",
}
"""Kinds of messages, and how the legend names them."""


@dataclass(frozen=True)
class Look:
    """How a diagram shows a run.

    Attributes
    ----------
    up, peer : kinds of the messages from workers to servers, and between workers.
    labels : returns the texts for the box of a computation, of which the first that fits is drawn.
    names : names of kinds in the legend, in place of those of `KINDS`.
    keys_below : bytes of a message below which it has keys or shares of secrets.
    """

    up: str
    peer: str
    labels: Callable[[Work], Sequence[str]]
    names: Mapping[str, str]
    keys_below: int = 0

    def name(self, kind: str) -> str:
        """Return the name of a kind of messages."""
        return self.names.get(kind, KINDS[kind])

    def kind(self, message: Message) -> str:
        """Return the kind of a message."""
        if message.nbytes < self.keys_below:
            return "keys"
        ends = [re.sub(r" \d+$", "", name) for name in (message.sender, message.receiver)]
        if ends == ["worker", "worker"]:
            return self.peer
        if self.up == "activations":
            return self.up
        return self.up if ends[0] == "worker" or ends == ["edge", "server"] else "weights"


def draw(title: str, recording: Recording, look: Look) -> str:
    """Return the diagram of a recorded run as SVG."""
    works = _merged(work for work in recording.works if work.call not in ADMINISTRATIVE and work.actor != "driver")
    end_s = max(work.end_s for work in works)
    messages = [each for each in recording.messages if _is_shown(each, end_s)]
    meetings = [each for each in recording.collectives if each.end_s <= end_s]
    starts = [*(work.begin_s for work in works), *(message.leaves_s for message in messages)]
    begin_s, end_s = min(starts), max([end_s, *(message.arrives_s for message in messages)])
    actors = sorted({work.actor for work in works} | {each.receiver for each in messages}, key=_order)
    place = {actor: TOP + LANE // 2 + LANE * number for number, actor in enumerate(actors)}
    scale = (WIDTH - LEFT - RIGHT) / (end_s - begin_s)

    def across(time_s: float) -> float:
        return round(LEFT + (time_s - begin_s) * scale, 1)

    shown = sorted({look.kind(message) for message in messages}, key=list(KINDS).index)
    legend, bottom = _legend(_entries(shown, works, meetings, look), TOP + LANE * len(actors) + 18, end_s - begin_s)
    parts = [_head(title, bottom + 12, _description(works, messages, meetings, look), shown)]
    parts += [_lane(actor, place[actor]) for actor in actors]
    parts += [_box(across(w.begin_s), across(w.end_s), place[w.actor], look.labels(w), _color(w)) for w in works]
    parts += [_box(across(w.begin_s), across(w.end_s), place[w.actor], ["sum"], "sum") for w in meetings]
    parts += [
        _arrow(across(m.leaves_s), place[m.sender], across(m.arrives_s), place[m.receiver], look.kind(m))
        for m in messages
    ]
    return "\n".join([*parts, legend, "</svg>", ""])


def _merged(works: Iterable[Work]) -> list[Work]:
    """Return the computations; pieces of one call without a gap become one."""
    found: dict[str, list[Work]] = {}
    for work in sorted(works, key=lambda each: each.begin_s):
        mine = found.setdefault(work.actor, [])
        last = mine[-1] if mine else None
        if last is not None and last.call == work.call and work.begin_s - last.end_s < 1e-9:
            work = Work(work.actor, work.call, last.begin_s, work.end_s, last.samples + work.samples)
            mine.pop()
        mine.append(work)
    return [work for actor in sorted(found, key=_order) for work in found[actor]]


def _is_shown(message: Message, end_s: float) -> bool:
    """Return whether a message has vectors, goes from actor to actor, and is used by a computation that is drawn."""
    ends = message.sender, message.receiver
    return "driver" not in ends and message.nbytes > SMALL and message.leaves_s < end_s


def _order(actor: str) -> tuple[int, str]:
    kind = actor.partition(" ")[0]
    return {"server": 0, "edge": 1}.get(kind, 2), actor


def _color(work: Work) -> str:
    return "work" if work.actor.startswith("worker") else "step"


def _head(title: str, height: int, description: str, kinds: Sequence[str]) -> str:
    tips = [
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" style="fill: var(--{kind})"/></marker>'
        for kind in kinds
    ]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH * SCALE:.0f}" height="{height * SCALE:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>\n'
        f"<desc>{escape(description)}</desc>\n<style>{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="6" style="fill: var(--page)"/>\n{"".join(tips)}'
    )


def _lane(actor: str, y: int) -> str:
    return f'<text x="10" y="{y + 4}">{actor}</text><path class="lane" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'


def _box(left: float, right: float, y: int, labels: Sequence[str], color: str) -> str:
    width = max(round(right - left, 1), 1)
    box = f'<rect x="{left}" y="{y - BOX // 2}" width="{width}" height="{BOX}" rx="3" class="{color}"/>'
    label = next((each for each in labels if len(each) * LETTER <= width), "")
    if not label:
        return box
    return f'{box}<text class="in" x="{round(left + width / 2, 1)}" y="{y + 4}">{escape(label)}</text>'


def _arrow(x: float, y: int, to_x: float, to_y: int, kind: str) -> str:
    down = 1 if to_y > y else -1
    line = f"M{x} {y + down * BOX // 2}L{to_x} {to_y - down * BOX // 2}"
    return f'<path d="{line}" marker-end="url(#{kind})" style="stroke: var(--{kind}); stroke-width: 1.6; fill: none"/>'


def _entries(
    shown: Sequence[str], works: Sequence[Work], meetings: Sequence[Work], look: Look
) -> list[tuple[str, str]]:
    """Return the symbols and texts of the legend."""
    boxes = [("work", "worker computes")]
    if any(_color(work) == "step" for work in works):
        boxes.append(("step", "server computes"))
    if meetings:
        boxes.append(("sum", "all-reduce: all send and receive"))
    box = '<rect y="-10" width="18" height="12" rx="3" class="{}"/>'
    arrow = '<path d="M0 -4H18" style="stroke: var(--{}); stroke-width: 3"/>'
    return [
        *((box.format(color), text) for color, text in boxes),
        *((arrow.format(kind), look.name(kind)) for kind in shown),
    ]


def _legend(entries: Sequence[tuple[str, str]], y: int, seconds: float) -> tuple[str, int]:
    """Return the legend, and its lowest line."""
    parts, x = [], LEFT
    for symbol, text in entries:
        width = round(46 + len(text) * 6.4)
        if x > LEFT and x + width - 22 > WIDTH - RIGHT:
            x, y = LEFT, y + 22
        parts.append(f'<g transform="translate({x} {y})">{symbol}<text x="24">{text}</text></g>')
        x += width
    time = f"{seconds * 1e3:.0f} ms →"
    y += 22 if x > WIDTH - RIGHT - len(time) * 6.4 else 0
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">{time}</text>')
    return "".join(parts), y


def _description(works: Sequence[Work], messages: Sequence[Message], meetings: Sequence[Work], look: Look) -> str:
    """Return the diagram in words, for readers who do not see it."""
    actors = sorted({work.actor for work in works}, key=_order)
    counts = {kind: sum(look.kind(message) == kind for message in messages) for kind in KINDS}
    sent = [f"{count} messages with {look.name(kind)}" for kind, count in counts.items() if count]
    collectives = len(meetings) // max(1, len({each.actor for each in meetings}))
    sent += [f"{collectives} all-reduce operations"] if collectives else []
    carried = f" They exchange {', '.join(sent)}." if sent else " They exchange no messages."
    return f"Time runs from left to right. The lanes are {', '.join(actors)}. Boxes are computations.{carried}"
