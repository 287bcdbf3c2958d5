"""Who of a group takes part in the mean of a step."""

from __future__ import annotations

import numpy as np

from chimera.core.engine import Group
from chimera.core.parameters import Flat
from chimera.training.messages.tally import Tally


class Participation:
    """Means over a group, in place; what this member gives to them is counted.

    Parameters
    ----------
    group : its members; each makes one of these for a step.
    tally : of this member.
    """

    def __init__(self, group: Group, tally: Tally) -> None:
        self._group, self._tally = group, tally
        self._present, self._count = True, group.size

    def only_if(self, present: bool) -> int:
        """Leave out those who say so, from now on; return how many are left. A collective: all members make this call."""
        count = np.array([present], np.float32)
        self._tally.gave(self._group.all_reduce(count, "sum"))
        self._present, self._count = present, int(count[0])
        return self._count

    def mean(self, array: Flat) -> None:
        """Replace a vector by its mean over those who take part; all members get the same bits."""
        self._tally.gave(array)
        if self._count == self._group.size:
            self._group.all_reduce(array)
            return
        if not self._present:
            array.fill(0)
        self._group.all_reduce(array, "sum")
        array *= np.float32(1 / self._count)
