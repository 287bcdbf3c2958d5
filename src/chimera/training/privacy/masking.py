"""A client of a private run: clips its update, adds noise, and masks it (docs/explanation/privacy.md)."""

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
"""The codec name of masked messages, of which only the sum can be read."""


class Masking:
    """The part of a `Learner` that protects its update. The driver makes these calls before and after `Learner.delta`."""

    _rank: int
    _seed: int
    _exchange: Any
    _privacy: Privacy | None
    _asked = 1
    _client: Client | None = None  # client of the current round of secure aggregation
    _masked = False

    def take_part(self, asked: int) -> None:
        """Set the number of clients of the current round.

        Raises
        ------
        PrivacyError : with secure aggregation, the list of keys defines the number. A larger number would reduce the noise.
        """
        if self._promised().secure_aggregation:
            raise PrivacyError("with secure aggregation, the list of keys defines the number of clients of a round")
        self._asked = asked

    def advertise_keys(self) -> Bytes:
        """Start a round of secure aggregation; return the public keys of this client, see `Client`."""
        from chimera.privacy.secure_aggregation import Client

        self._client, self._masked = Client(), False
        return self._client.keys()

    def share_secrets(self, public_keys: Bytes) -> Bytes:
        """Return the sealed secret shares for all clients in the list of keys, see `Client.shares`."""
        sealed = self._in_round().shares(public_keys, self._promised().needed(len(public_keys)))
        self._asked = len(public_keys)
        return sealed

    def receive_secrets(self, sealed: Bytes) -> None:
        """Receive the secret shares of the other clients, see `Client.receive`."""
        self._in_round().receive(sealed)

    def has_masked(self) -> bool:
        """Return whether this client sent an update in this round. An update that is not finite is not sent."""
        return self._masked

    def reveal_shares(self, survivors: Bytes) -> Revealed:
        """Return the shares with which servers unmask the survivors' sum, see `Client.reveal`."""
        return self._in_round().reveal(survivors)

    def _private(self, update: Any, number: int) -> list[Encoded]:
        """Clip an update, shape (P,), in place, add noise, and return its messages. ``number`` is the step, for seeded noise.

        Raises
        ------
        PrivacyError : the update would be sent without masks, or with masks of an earlier round.
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
            raise PrivacyError("this run has no privacy settings: set train.privacy")
        return self._privacy

    def _in_round(self) -> Client:
        if self._client is None:
            raise PrivacyError("a client sends no update and reveals no shares outside a round of secure aggregation")
        return self._client
