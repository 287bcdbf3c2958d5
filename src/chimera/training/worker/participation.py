"""Participation of workers in the mean of a step."""

from __future__ import annotations

import numpy as np

from chimera.core.engine import Group
from chimera.core.parameters import Flat
from chimera.training.messages.tally import Tally


class Participation:
    """Computes means over the participating members of a group, in place, and counts the bytes that this member sends.

    Parameters
    ----------
    group : the group. Each member creates one `Participation` for a step.
    tally : tally of this member.
    """

    def __init__(self, group: Group, tally: Tally) -> None:
        self._group, self._tally = group, tally
        self._present, self._count = True, group.size

    def only_if(self, present: bool) -> int:
        """Exclude the members that call this with False; return the number of the other members. All members must call this."""
        count = np.array([present], np.float32)
        self._tally.gave(self._group.all_reduce(count, "sum"))
        self._present, self._count = present, int(count[0])
        return self._count

    def mean(self, array: Flat) -> None:
        """Replace a vector by its mean over the participants. All members get the same bits."""
        self._tally.gave(array)
        if self._group.size == 1:
            return  # the only member's vector, which may be on a device
        if self._count == self._group.size:
            self._group.all_reduce(array)
            return
        if not self._present:
            array.fill(0)
        self._group.all_reduce(array, "sum")
        array *= np.float32(1 / self._count)
