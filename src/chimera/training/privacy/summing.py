"""A parameter shard as the server of a private run: it carries keys, takes masks out of sums, adds noise (docs/privacy.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.call import work
from chimera.core.errors import PrivacyError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.privacy.noise import add_noise, source
from chimera.training.privacy.settings import Privacy

if TYPE_CHECKING:
    from chimera.privacy.secure_aggregation import Bytes, Revealed


class Summing:
    """The part of a `ParameterShard` that makes one sum of masked updates; the driver calls it around `update`."""

    _privacy: Privacy | None
    _weights: Flat
    _noise_key: int
    _expected: tuple[int, int, float] = 1, 1, 1.0  # clients asked, updates expected, sampling rate of the clients
    _roster: Bytes | None = None
    _stream = 0
    _revealed: tuple[Revealed, ...] = ()

    def roster(self, *keys: Bytes) -> Bytes:
        """Return the public keys of all clients, for all of them, shape (n, 64)."""
        return np.stack(keys)

    def route(self, *sealed: Bytes) -> list[Bytes]:
        """Return what is for each client of what each client sent; sealed as it is, the server cannot read it."""
        from chimera.privacy.secure_aggregation import routed

        return routed(sealed)

    def expect(
        self, asked: int, wanted: int, share: float, stream: int = 0, roster: Bytes | None = None, *revealed: Revealed
    ) -> None:
        """Take note of the round whose updates come next.

        Parameters
        ----------
        asked : how many clients it has; ``share`` is their share of all.
        wanted : the number of updates expected. A sum with noise is divided by it, even if clients drop out.
        stream : the number of this shard.
        roster, revealed : the keys of the clients, and what survivors revealed, if the updates come masked.
        """
        self._expected, self._stream, self._roster, self._revealed = (asked, wanted, share), stream, roster, revealed

    def _unmasked(self, messages: Mapping[int, Encoded]) -> dict[int, Encoded]:
        """Return masked messages as one, the mean of their updates; others as they are.

        Raises
        ------
        PrivacyError : they are not those of the round that was expected, or one has another form, and so no sum can be read:
            once masks are revealed, no update can be left out.
        """
        if self._privacy is None or not self._privacy.secure_aggregation or not messages:
            return dict(messages)
        from chimera.privacy.secure_aggregation import unmasked

        asked, *_ = self._expected
        if self._roster is None or len(self._roster) != asked:
            raise PrivacyError("masked updates came that nobody has revealed the masks of")
        code = self._privacy.code(asked)
        size = self._weights.size
        words = [_words(message, place, size, code.words) for place, message in messages.items()]
        total = unmasked(words, self._roster, self._revealed, self._privacy.needed(asked), self._stream)
        work(elements=len(total) * (len(words) + (asked - len(words)) * len(words)))
        self._roster, self._revealed = None, ()
        mean = (code.decode(total) / len(words)).astype(np.float32)
        return {0: Encoded("identity", len(mean), (mean,))}

    def _blur(self, mean: Flat, givers: int, step: int) -> None:
        """Add the server's noise to the mean of so many updates, in place."""
        if self._privacy is not None and self._privacy.on == "server":
            deviation = self._privacy.noise * self._privacy.clip / givers
            add_noise(mean, deviation, source(self._privacy.noise_seed, 2, self._noise_key, step))

    def _divided(self, givers: int, scale: float) -> float:
        """Return by what the mean of so many updates is multiplied.

        A sum with noise is divided by a number that no client's data or absence changes, so that the model tells of nobody by
        it, and that the noise is what was promised: the number of updates that the round was to have.
        """
        if self._privacy is None or self._privacy.noise == 0:
            return scale
        return givers / self._expected[1]

    def _mechanism(self, givers: int) -> tuple[float, float] | None:
        """Return the noise multiplier that the sum of so many updates had, and the share of the clients; None if no noise.

        Clients that are missing take their part of the noise with them.
        """
        if self._privacy is None or self._privacy.noise == 0 or givers == 0:
            return None
        asked, _, share = self._expected
        return self._privacy.multiplier(givers, asked), share


def _words(message: Any, place: int, size: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the words of a masked update, shape (size,).

    Raises
    ------
    PrivacyError : it has another form.
    """
    if type(message) is Encoded and len(message.arrays) == 1:
        (words,) = message.arrays
        if isinstance(words, np.ndarray) and (words.dtype, words.shape) == (kind, (size,)):
            return words
    raise PrivacyError(f"update {place} came without masks or with another size: without it no sum can be read")
