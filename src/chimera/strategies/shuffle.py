"""Coded shuffling (Li et al. 2018): holders of blocks, and packets from which each worker sums its part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple


class Piece(NamedTuple):
    """A segment of one part of a block's gradient.

    Attributes
    ----------
    part, block : number of the part of the vector, and of the block.
    segment, segments : number of the segment, and how many there are.
    """

    part: int
    block: int
    segment: int = 0
    segments: int = 1


@dataclass(frozen=True)
class Shuffle:
    """Blocks of workers and packets between them. Each set of ``copies`` workers holds one block; worker k sums part k.

    The number of a packet determines its content, whichever worker sends it. There are two kinds:

    - Coded: a group of ``copies`` + 1 workers and one member as sender. The packet holds, for each other member, a segment of
      the part that this member lacks and the rest hold.
    - Plain: one part of one block, unchanged.

    Attributes
    ----------
    workers, copies : number of workers n, and of holders of each block r.
    coded : whether a packet serves several workers; default True.
    """

    workers: int
    copies: int
    coded: bool = True

    @property
    def load(self) -> float:
        """The share of all parts of all blocks that is sent, in theory; a packet for several workers counts once."""
        return (1 - self.copies / self.workers) / (self.copies if self.coded else 1)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return math.comb(self.workers, self.copies)

    @property
    def holders(self) -> list[tuple[int, ...]]:
        """The places of the workers that hold each block, by number of the block."""
        return _sets(self.workers, self.copies)

    def held(self, place: int) -> list[int]:
        """Return the blocks that a worker holds, its own first. Each block belongs to one of its holders, in turn."""
        held = [block for block, holders in enumerate(self.holders) if place in holders]
        return sorted(held, key=lambda block: self._owner(block) != place)

    def own(self, place: int) -> int:
        """Return the number of blocks that belong to a worker."""
        return sum(self._owner(block) == place for block in range(self.count))

    def parts(self, place: int, there: tuple[int, ...]) -> list[int]:
        """Return the parts that a worker sums when the workers ``there`` participate: its own, and parts of absent workers."""
        return [part for part in range(self.workers) if _reader(part, there) == place]

    def lost(self, there: tuple[int, ...]) -> list[int]:
        """Return the blocks that no worker in ``there`` holds."""
        return [block for block, holders in enumerate(self.holders) if not set(holders) & set(there)]

    def senders(self, there: tuple[int, ...]) -> Mapping[int, int]:
        """Return the sender of each packet, by number, when only the workers ``there`` participate; no block may be lost."""
        return {number: sender for place in there for number, sender in self.needs(place, there).items()}

    def needs(self, place: int, there: tuple[int, ...]) -> Mapping[int, int]:
        """Return the packets that a worker needs for its parts, by number, each with its sender."""
        return _needs(self, place, there)

    def sources(self, part: int, block: int, there: tuple[int, ...]) -> dict[int, int]:
        """Return the packets that contain a part of a block, by number, each with its sender."""
        holders = self.holders[block]
        if self.coded and part in there and set(holders) <= set(there):
            group = tuple(sorted((part, *holders)))
            first = _numbers(self.workers, self.copies + 1)[group] * (self.copies + 1)
            return {first + group.index(sender): sender for sender in holders}
        living = [place for place in holders if place in there]
        return {self.plain + part * self.count + block: living[part % len(living)]}

    def pieces(self, number: int) -> Sequence[Piece]:
        """Return the pieces in a packet."""
        return _pieces(self, number)

    @property
    def plain(self) -> int:
        """The first number of the plain packets."""
        return math.comb(self.workers, self.copies + 1) * (self.copies + 1)

    def _owner(self, block: int) -> int:
        return self.holders[block][block % self.copies]


def _reader(part: int, there: tuple[int, ...]) -> int:
    return part if part in there else there[part % len(there)]


@lru_cache(maxsize=1024)
def _needs(shuffle: Shuffle, place: int, there: tuple[int, ...]) -> Mapping[int, int]:
    held, needs = set(shuffle.held(place)), dict[int, int]()
    for part in shuffle.parts(place, there):
        for block in range(shuffle.count):
            if block not in held:
                needs.update(shuffle.sources(part, block, there))
    return needs


@lru_cache(maxsize=4096)
def _pieces(shuffle: Shuffle, number: int) -> Sequence[Piece]:
    if number >= shuffle.plain:
        return [Piece(*divmod(number - shuffle.plain, shuffle.count))]
    group, place = divmod(number, shuffle.copies + 1)
    members = _sets(shuffle.workers, shuffle.copies + 1)[group]
    pieces = []
    for reader in members:
        if reader != members[place]:
            holders = tuple(member for member in members if member != reader)
            block = _numbers(shuffle.workers, shuffle.copies)[holders]
            pieces.append(Piece(reader, block, holders.index(members[place]), shuffle.copies))
    return pieces


@lru_cache(maxsize=16)
def _sets(workers: int, size: int) -> list[tuple[int, ...]]:
    return list(combinations(range(workers), size))


@lru_cache(maxsize=16)
def _numbers(workers: int, size: int) -> dict[tuple[int, ...], int]:
    return {members: number for number, members in enumerate(_sets(workers, size))}
