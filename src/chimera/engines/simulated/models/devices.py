"""The device model: speed and connection of each client, from a file or drawn from a distribution."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.engines.simulated.models.draws import standard_normal, uniform
from chimera.engines.simulated.models.names import CLIENTS, full_name
from chimera.engines.simulated.models.records import read_records
from chimera.engines.simulated.options import check_range, named_option

_OPTIONAL = "uplink_bytes_s", "downlink_bytes_s", "latency_s"


class Device(NamedTuple):
    """A machine and its connection.

    Attributes
    ----------
    seconds_per_sample : duration of a call per sample.
    uplink_bytes_s, downlink_bytes_s : bandwidth of its uplink and downlink.
    latency_s : latency of its connection.
    """

    seconds_per_sample: float
    uplink_bytes_s: float
    downlink_bytes_s: float
    latency_s: float


class DeviceModel(ABC):
    """A distribution of devices. One verb: `device`."""

    @abstractmethod
    def device(self, seed: int, name: str, typical: Device) -> Device:
        """Return the device of a client, which must depend on the arguments only.

        Parameters
        ----------
        seed : seed of the engine.
        name : name of the client.
        typical : the device that the tables of the network and of the compute model describe.
        """


DEVICES: Registry[DeviceModel] = Registry("device model", "chimera.engines.simulated.models", DeviceModel)


@dataclass(frozen=True, kw_only=True)
class _Drawn(DeviceModel):
    """Devices with a drawn factor of their time per sample, and another of the time per byte on both of their links."""

    seconds_per_sample: float | None = None
    uplink_bytes_s: float | None = None
    downlink_bytes_s: float | None = None
    latency_s: float | None = None
    correlation: float = 0.0

    def __post_init__(self) -> None:
        for key in ("seconds_per_sample", "latency_s"):
            if (value := getattr(self, key)) is not None:
                check_range(key, value)
        for key in ("uplink_bytes_s", "downlink_bytes_s"):
            if (value := getattr(self, key)) is not None:
                check_range(key, value, above_zero=True)
        if not -1 <= self.correlation <= 1:
            raise ConfigurationError(f"correlation = {self.correlation!r} must be from -1 to 1")

    @abstractmethod
    def _factors(self, of_compute: float, of_network: float) -> tuple[float, float]:
        """Return the two factors for a pair of draws from N(0, 1)."""

    def device(self, seed: int, name: str, typical: Device) -> Device:
        """Draw the device of a client."""
        first, second = standard_normal(seed, "device", name), standard_normal(seed, "connection", name)
        second = self.correlation * first + math.sqrt(1 - self.correlation**2) * second
        slower, narrower = self._factors(first, second)
        own = (getattr(self, key) for key in Device._fields)
        seconds, up, down, latency_s = (
            given if value is None else value for value, given in zip(own, typical, strict=True)
        )
        return Device(seconds * slower, up / narrower, down / narrower, latency_s)


@DEVICES.register("log-normal")
@dataclass(frozen=True, kw_only=True)
class LogNormal(_Drawn):
    """Devices whose times are log-normal: half of them is faster than the typical device.

    Attributes
    ----------
    spread : sigma of the factor (median 1) of the time per sample.
    bandwidth_spread : sigma of the factor (median 1) of the time per byte.
    seconds_per_sample, uplink_bytes_s, downlink_bytes_s, latency_s : the typical device; default: as the tables ``compute`` and
        ``network`` describe.
    correlation : correlation of the logarithms of both factors, -1 to 1; with 1 the slowest device has the slowest connection.
    """

    spread: float = 1.0
    bandwidth_spread: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("spread", self.spread)
        check_range("bandwidth_spread", self.bandwidth_spread)

    def _factors(self, of_compute: float, of_network: float) -> tuple[float, float]:
        return math.exp(self.spread * of_compute), math.exp(self.bandwidth_spread * of_network)


@DEVICES.register("pareto")
@dataclass(frozen=True, kw_only=True)
class Pareto(_Drawn):
    """Devices whose times have a heavy tail: a share x**-alpha of them takes more than x times as long as the fastest.

    Attributes
    ----------
    alpha : exponent of the tail of the time per sample; with at most 2 the variance is infinite, with at most 1 the mean too.
    bandwidth_alpha : exponent of the tail of the time per byte; ``inf`` (default): all connections are equal.
    seconds_per_sample, uplink_bytes_s, downlink_bytes_s, latency_s : the fastest device; default: as the tables ``compute`` and
        ``network`` describe.
    correlation : correlation of the normal draws behind both factors (a Gaussian copula), -1 to 1.
    """

    alpha: float = 1.5
    bandwidth_alpha: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, above_zero=True)
        check_range("bandwidth_alpha", self.bandwidth_alpha, above_zero=True)

    def _factors(self, of_compute: float, of_network: float) -> tuple[float, float]:
        return _exceeded(of_compute) ** (-1 / self.alpha), _exceeded(of_network) ** (-1 / self.bandwidth_alpha)


def _exceeded(normal: float) -> float:
    """Return the probability that a draw from N(0, 1) is larger."""
    return math.erfc(normal / math.sqrt(2)) / 2


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of clients; without ``path`` and ``model`` all actors have the typical device.

    Attributes
    ----------
    path : a CSV file with columns ``client,seconds_per_sample`` and optionally ``uplink_bytes_s,downlink_bytes_s,latency_s``.
        Clients that the file does not name have a device drawn from its rows.
    model : a name or a table: ``log-normal`` or ``pareto``.
    clients : pattern of the names of the actors that have such devices; default ``worker *``.
    """

    path: str | None = None
    model: Any = None
    clients: str = CLIENTS

    def __post_init__(self) -> None:
        if self.path is not None and self.model is not None:
            raise ConfigurationError("path and model exclude each other: devices come from one of them")
        if self.model is not None:
            object.__setattr__(self, "model", named_option(DEVICES, self.model, DeviceModel))
        if self.path is not None:
            _ = self._measured  # mistakes in the file are found before the run

    @cached_property
    def _measured(self) -> tuple[dict[str, int], list[tuple[float | None, ...]]]:
        """The row number of each client, and the rows."""
        places, rows = dict[str, int](), list[tuple[float | None, ...]]()
        for record in read_records(self.path or "", ("client", "seconds_per_sample"), _OPTIONAL):
            name = full_name(record.text("client"))
            if name in places:
                record.refuse("client", f"is {name!r}, which an earlier row describes")
            places[name] = len(rows)
            up, down = (record.optional(column, above_zero=True, finite=False) for column in _OPTIONAL[:2])
            rows.append((record.number("seconds_per_sample"), up, down, record.optional("latency_s")))
        return places, rows

    @property
    def given(self) -> bool:
        """Whether clients have devices of their own."""
        return self.path is not None or self.model is not None

    def of(self, seed: int, name: str, typical: Device) -> Device:
        """Return the device of an actor."""
        if not self.given or not fnmatchcase(name, self.clients):
            return typical
        if self.model is not None:
            drawn: Device = self.model.device(seed, name, typical)
            return drawn
        places, rows = self._measured
        place = places.get(name)
        if place is None:
            place = int(uniform(seed, "row", name) * len(rows))
        return Device(*_filled(rows[place], typical))


def _filled(row: Iterable[float | None], typical: Device) -> list[float]:
    return [given if value is None else value for value, given in zip(row, typical, strict=True)]
