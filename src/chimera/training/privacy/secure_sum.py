"""The server of a private run: relays keys, unmasks sums, adds noise (docs/explanation/privacy.md)."""

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


class SecureSum:
    """The part of a `ParameterShard` that sums masked updates. The driver calls it before and after `update`."""

    _privacy: Privacy | None
    _weights: Flat
    _noise_key: int
    _expected: tuple[int, int, float] = 1, 1, 1.0  # clients asked, updates expected, sampling rate of the clients
    _public_keys: Bytes | None = None
    _stream = 0
    _revealed: tuple[Revealed, ...] = ()

    def public_keys(self, *keys: Bytes) -> Bytes:
        """Return the list of the public keys of all clients, shape (n, 64); wider if certificates follow the keys."""
        return np.stack(keys)

    def route(self, *sealed: Bytes) -> list[Bytes]:
        """Return, for each client, the sealed shares that the other clients sent to it. The server cannot read them."""
        from chimera.privacy.secure_aggregation import route_shares

        return route_shares(sealed)

    def expect(
        self,
        asked: int,
        wanted: int,
        share: float,
        stream: int = 0,
        public_keys: Bytes | None = None,
        *revealed: Revealed,
    ) -> None:
        """Set the parameters of the round whose updates come next.

        Parameters
        ----------
        asked : number of clients in the round.
        wanted : number of updates expected. A noisy sum is divided by it, even if clients drop out.
        share : ``asked`` as a fraction of all clients.
        stream : index of this shard.
        public_keys, revealed : keys of the clients, and shares that survivors revealed, if updates are masked.
        """
        self._expected, self._stream, self._public_keys, self._revealed = (
            (asked, wanted, share),
            stream,
            public_keys,
            revealed,
        )

    def _unmasked(self, messages: Mapping[int, Encoded]) -> dict[int, Encoded]:
        """Return the mean of masked updates as one message; return other messages unchanged.

        Raises
        ------
        PrivacyError : the messages do not belong to the expected round, or one has another form. The sum cannot be read then:
            after masks are revealed, no update can be left out.
        """
        if self._privacy is None or not self._privacy.secure_aggregation or not messages:
            return dict(messages)
        from chimera.privacy.secure_aggregation import KEYS_BYTES, unmask

        asked, *_ = self._expected
        if self._public_keys is None or len(self._public_keys) != asked:
            raise PrivacyError("masked updates arrived whose masks were not revealed")
        code = self._privacy.code(asked)
        size = self._weights.size
        words = [_words(message, place, size, code.words) for place, message in messages.items()]
        keys = self._public_keys[:, :KEYS_BYTES]  # nodes of a federation sign their keys
        total = unmask(words, keys, self._revealed, self._privacy.needed(asked), self._stream)
        work(elements=len(total) * (len(words) + (asked - len(words)) * len(words)))
        self._public_keys, self._revealed = None, ()
        mean = (code.decode(total) / len(words)).astype(np.float32)
        return {0: Encoded("identity", len(mean), (mean,))}

    def _add_noise(self, mean: Flat, contributors: int, step: int) -> None:
        """Add the server's noise to the mean of ``contributors`` updates, in place."""
        if self._privacy is not None and self._privacy.on == "server":
            deviation = self._privacy.noise * self._privacy.clip / contributors
            add_noise(mean, deviation, source(self._privacy.noise_seed, 2, self._noise_key, step))

    def _divided(self, contributors: int, scale: float) -> float:
        """Return the factor of the mean of ``contributors`` updates.

        A noisy sum is divided by the number of updates that the round expected. No client's data or absence changes this
        number, so it reveals nothing, and the noise has the promised size.
        """
        if self._privacy is None or self._privacy.noise == 0:
            return scale
        return contributors / self._expected[1]

    def _mechanism(self, contributors: int) -> tuple[float, float] | None:
        """Return the noise multiplier of the sum of ``contributors`` updates and the share of clients; None without noise.

        The noise of missing clients is missing.
        """
        if self._privacy is None or self._privacy.noise == 0 or contributors == 0:
            return None
        asked, _, share = self._expected
        return self._privacy.multiplier(contributors, asked), share


def _words(message: Any, place: int, size: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the words of a masked update, shape (size,).

    Raises
    ------
    PrivacyError : the message has another form.
    """
    if type(message) is Encoded and len(message.arrays) == 1:
        (words,) = message.arrays
        if isinstance(words, np.ndarray) and (words.dtype, words.shape) == (kind, (size,)):
            return words
    raise PrivacyError(f"update {place} came without masks or with another size: without it no sum can be read")
