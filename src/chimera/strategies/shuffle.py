"""Coded shuffling (Li et al. 2018): who holds which blocks, and who sends what, so that each worker can add up its part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple


class Piece(NamedTuple):
    """A segment of a part of a block's gradient.

    Attributes
    ----------
    part, block : of which part of the vector, and of which block.
    segment, segments : which of how many.
    """

    part: int
    block: int
    segment: int = 0
    segments: int = 1


@dataclass(frozen=True)
class Shuffle:
    """Places for blocks, and packets for parts. Each set of ``copies`` workers holds a block; worker k adds up part k.

    A packet's number says what is in it, whoever sends it: a group of ``copies`` + 1 workers and one of them, who sends the
    others segments of what each of them lacks and the rest have; or a part and a block, to be sent as they are.

    Attributes
    ----------
    workers, copies : n, and how many hold each block, r.
    coded : whether packets are for several at a time.
    """

    workers: int
    copies: int
    coded: bool = True

    @property
    def load(self) -> float:
        """How much is sent in theory, as a share of all parts of all blocks; a packet for several counts once."""
        return (1 - self.copies / self.workers) / (self.copies if self.coded else 1)

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return math.comb(self.workers, self.copies)

    @property
    def holders(self) -> list[tuple[int, ...]]:
        """Who holds each block, by number."""
        return _sets(self.workers, self.copies)

    def held(self, place: int) -> list[int]:
        """Return the blocks that a worker holds, first those that are its own: each block is of one of its holders, in turn."""
        held = [block for block, holders in enumerate(self.holders) if place in holders]
        return sorted(held, key=lambda block: self._owner(block) != place)

    def own(self, place: int) -> int:
        """Return how many of these are its own."""
        return sum(self._owner(block) == place for block in range(self.count))

    def parts(self, place: int, there: tuple[int, ...]) -> list[int]:
        """Return which parts a worker adds up, of all when those at these places are there: its own, and of who is not."""
        return [part for part in range(self.workers) if _reader(part, there) == place]

    def lost(self, there: tuple[int, ...]) -> list[int]:
        """Return the blocks that nobody holds who is there."""
        return [block for block, holders in enumerate(self.holders) if not set(holders) & set(there)]

    def senders(self, there: tuple[int, ...]) -> Mapping[int, int]:
        """Return who is to send each packet, by number, when nobody else is there; no block is lost."""
        return {number: sender for place in there for number, sender in self.needs(place, there).items()}

    def needs(self, place: int, there: tuple[int, ...]) -> Mapping[int, int]:
        """Return from which packets this one puts its parts together, by number, each with its sender."""
        return _needs(self, place, there)

    def sources(self, part: int, block: int, there: tuple[int, ...]) -> dict[int, int]:
        """Return the packets from which a part of a block is put together, by number, each with its sender."""
        holders = self.holders[block]
        if self.coded and part in there and set(holders) <= set(there):
            group = tuple(sorted((part, *holders)))
            first = _numbers(self.workers, self.copies + 1)[group] * (self.copies + 1)
            return {first + group.index(sender): sender for sender in holders}
        living = [place for place in holders if place in there]
        return {self.plain + part * self.count + block: living[part % len(living)]}

    def pieces(self, number: int) -> Sequence[Piece]:
        """Return what is in a packet."""
        return _pieces(self, number)

    @property
    def plain(self) -> int:
        """The first number of a packet of one piece."""
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
