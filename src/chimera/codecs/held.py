"""The state of a receiver, if messages depend on one another."""

from __future__ import annotations

from dataclasses import dataclass

from chimera.core.parameters import Flat


@dataclass(frozen=True)
class Held:
    """A receiver's state about messages of one sender that depend on one another. Sender and receiver keep equal copies.

    Attributes
    ----------
    number : number of the last message, from 1; 0 before the first.
    reference : vector from which the next difference is taken, and to which it is added, shape (n,); read-only by convention.
    value : the vector of the last message, shape (n,).
    """

    number: int = 0
    reference: Flat | None = None
    value: Flat | None = None
