"""A worker as a client of a private run: it clips its update, adds noise, and sends it under masks (docs/privacy.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chimera.core.call import work
from chimera.core.device import to_host
from chimera.core.errors import PrivacyError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.privacy.noise import add_noise, clip, source
from chimera.training.privacy.settings import Privacy

if TYPE_CHECKING:
    from chimera.privacy.secure_aggregation import Bytes, Client, Revealed

MASKED = "masked"
"""What stands in the place of a codec's name in a message that only a sum of can be read."""


class Masking:
    """The part of a `Learner` that keeps its update to itself. The driver makes these calls around `Learner.delta`."""

    _rank: int
    _seed: int
    _exchange: Any
    _privacy: Privacy | None
    _asked = 1
    _client: Client | None = None  # of the round under way, where updates are masked
    _masked = False

    def take_part(self, asked: int) -> None:
        """Take note of how many clients the round under way has.

        Raises
        ------
        PrivacyError : with secure aggregation the roster says so; a larger number would make the noise smaller.
        """
        if self._promised().secure_aggregation:
            raise PrivacyError("with secure aggregation the roster says how many clients a round has")
        self._asked = asked

    def advertise_keys(self) -> Bytes:
        """Begin a round of secure aggregation, and return the public keys of this client; see `Client`."""
        from chimera.privacy.secure_aggregation import Client

        self._client, self._masked = Client(), False
        return self._client.keys()

    def share_secrets(self, roster: Bytes) -> Bytes:
        """Return what this client shares with each, sealed, of the keys of all; see `Client.shares`."""
        sealed = self._in_round().shares(roster, self._promised().needed(len(roster)))
        self._asked = len(roster)
        return sealed

    def receive_secrets(self, sealed: Bytes) -> None:
        """Take what the others share with this client; see `Client.receive`."""
        self._in_round().receive(sealed)

    def has_masked(self) -> bool:
        """Return whether there was an update to send in this round: one that is not finite is not sent."""
        return self._masked

    def reveal_shares(self, survivors: Bytes) -> Revealed:
        """Return what the servers need to take the masks out of the survivors' sum; see `Client.reveal`."""
        return self._in_round().reveal(survivors)

    def _private(self, update: Any, number: int) -> list[Encoded]:
        """Return the messages of an update, shape (P,), which is changed; noise goes by the ``number`` of the step.

        Raises
        ------
        PrivacyError : it would have to be sent without masks, or with old ones.
        """
        privacy = self._promised()
        flat: Flat = to_host(update)
        clip(flat, privacy.clip)
        add_noise(flat, privacy.deviation(self._asked), source(privacy.noise_seed, 1, self._seed, self._rank, number))
        if not privacy.secure_aggregation:
            flat.flags.writeable = False  # a message need not copy it
            return self._packed(flat)
        client, code, messages = self._in_round(), privacy.code(self._asked), []
        for stream, piece in enumerate(self._exchange.pieces(flat)):
            messages.append(Encoded(MASKED, len(piece), (client.mask(code.encode(piece), stream),)))
        work(elements=len(flat) * self._asked)
        self._masked = True
        return self._counted(messages)

    def _packed(self, flat: Flat) -> list[Encoded]:
        raise NotImplementedError

    def _counted(self, messages: list[Encoded]) -> list[Encoded]:
        raise NotImplementedError

    def _promised(self) -> Privacy:
        if self._privacy is None:
            raise PrivacyError("this run has no privacy to keep: set train.privacy")
        return self._privacy

    def _in_round(self) -> Client:
        if self._client is None:
            raise PrivacyError("a client sends no update, and reveals nothing, outside a round of secure aggregation")
        return self._client
