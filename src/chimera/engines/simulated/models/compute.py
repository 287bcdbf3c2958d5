"""The compute model: duration of calls, speed of actors, and stragglers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chimera.core.call import Work
from chimera.core.errors import ConfigurationError
from chimera.engines.simulated.models.draws import normal_share, standard_normal, uniform_index
from chimera.engines.simulated.options import check_range

_MAX_FACTORS = 4096


@dataclass(frozen=True, kw_only=True)
class CodecCost:
    """The duration of encoding, decoding and reducing vectors with one codec.

    Attributes
    ----------
    seconds_per_message : fixed duration of encoding a message.
    seconds_per_element : further duration per element of the encoded vector.
    decode_per_message, decode_per_element : the same for decoding by a server.
    reduce_per_message, reduce_per_element : the same for a reduction with collectives, without the collectives themselves.
        None: as for encoding.
    """

    seconds_per_message: float = 0.0
    seconds_per_element: float = 0.0
    decode_per_message: float = 0.0
    decode_per_element: float = 0.0
    reduce_per_message: float | None = None
    reduce_per_element: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                check_range(name, value)

    def seconds(self, action: str, messages: int, elements: int) -> float:
        """Return the duration of encoding, decoding or reducing (``action``) messages of ``elements`` elements in all."""
        fixed, each = self.seconds_per_message, self.seconds_per_element
        if action == "decode":
            fixed, each = self.decode_per_message, self.decode_per_element
        elif action == "reduce":
            fixed = fixed if self.reduce_per_message is None else self.reduce_per_message
            each = each if self.reduce_per_element is None else self.reduce_per_element
        return fixed * messages + each * elements


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The duration of calls, in virtual seconds.

    A call lasts ``seconds_per_call`` plus the work that it declares through `chimera.core.call.work`, times the factors of its
    actor and of the call. The draws depend on the engine's seed, the actor's name and the number of its call only.

    Attributes
    ----------
    seconds_per_call : fixed duration of every call.
    seconds_per_sample : duration per sample.
    seconds_per_element : duration per element of a vector, for instance when a server averages gradients.
    seconds_per_batch : further fixed duration of each batch.
    spread : sigma of a log-normal factor (median 1) drawn once an actor: heterogeneous machines.
    straggler_spread : sigma of a log-normal factor (median 1) drawn for every call: stragglers.
    straggler_factors : measured factors, of which one is drawn for every call instead; all are equally likely.
    straggler_correlation : correlation, from 0 to below 1, of the normal draws behind the factors of calls. It applies to calls
        of several actors with the same number, such as the calls of all workers in a synchronous round.
    codecs : durations of encoding and decoding by the name of a codec; codecs that are not listed take no time.
    slow : further fixed factors by actor name; 4.0 is four times as slow.
    """

    seconds_per_call: float = 1e-4
    seconds_per_sample: float = 1e-5
    seconds_per_element: float = 1e-9
    spread: float = 0.0
    straggler_spread: float = 0.0
    seconds_per_batch: float = 0.0
    straggler_factors: Sequence[float] = ()
    straggler_correlation: float = 0.0
    codecs: Mapping[str, CodecCost] = field(default_factory=dict)
    slow: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("seconds_per_call", "seconds_per_sample", "seconds_per_element", "spread", "straggler_spread"):
            check_range(name, getattr(self, name))
        check_range("seconds_per_batch", self.seconds_per_batch)
        if self.straggler_factors and self.straggler_spread:
            raise ConfigurationError("straggler_factors and straggler_spread both describe stragglers: set one of them")
        check_range("straggler_correlation", self.straggler_correlation)
        if self.straggler_correlation >= 1:
            raise ConfigurationError(f"straggler_correlation must be below 1, not {self.straggler_correlation}")
        if self.straggler_correlation and list(self.straggler_factors) != sorted(self.straggler_factors):
            raise ConfigurationError("straggler_factors must be in ascending order if straggler_correlation is set")
        if len(self.straggler_factors) > _MAX_FACTORS:
            raise ConfigurationError(
                f"straggler_factors has {len(self.straggler_factors)} values; give at most {_MAX_FACTORS}"
            )
        for factor in self.straggler_factors:
            check_range("straggler_factors", factor, above_zero=True)
        for name, factor in self.slow.items():
            check_range(f"slow, {name!r}", factor, above_zero=True)

    def actor_factor(self, seed: int, actor: str) -> float:
        """Return the factor by which ``actor`` is slower than the median machine."""
        drawn = math.exp(self.spread * standard_normal(seed, "actor", actor)) if self.spread else 1.0
        return drawn * self.slow.get(actor, 1.0)

    def call_factor(self, seed: int, actor: str, number: int) -> float:
        """Return the factor by which call ``number`` (from 0) of ``actor`` takes longer than the median call."""
        if not self.straggler_spread and not self.straggler_factors:
            return 1.0
        count, shared = len(self.straggler_factors), self.straggler_correlation
        if count and not shared:
            return self.straggler_factors[uniform_index(count, seed, "call", actor, number)]
        drawn = standard_normal(seed, "call", actor, number)
        if shared:
            drawn = math.sqrt(1 - shared) * drawn + math.sqrt(shared) * standard_normal(seed, "calls", number)
        if count:
            return self.straggler_factors[min(int(count * normal_share(drawn)), count - 1)]
        return math.exp(self.straggler_spread * drawn)

    def further_s(self, work: Work) -> float:
        """Return the duration of the declared batches and messages, without the factors of their actor and call."""
        seconds = self.seconds_per_batch * work.batches
        if self.codecs and work.coded:
            for (name, action), (messages, elements) in work.coded.items():
                if (cost := self.codecs.get(name)) is not None:
                    seconds += cost.seconds(action, messages, elements)
        return seconds
