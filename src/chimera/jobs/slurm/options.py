"""Options of a job on Slurm, as in ``partition=short,time=30m,nodes=2``.

Each value is parsed strictly, since it is written into a batch script: a value that is not of its form is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from chimera.core.errors import ConfigurationError, did_you_mean

UNLIMITED = -1
"""Time limit of a job that runs without one."""
LEAD_S = 60
"""Default time between the signal and the time limit, in seconds."""
_MAX_LEAD_S = 65535  # maximum of Slurm
_DAY_S = 24 * 3600
_NAME = re.compile(r"\w[\w.+-]{0,63}", re.ASCII)
_FEATURES = re.compile(r"\w[\w.+-]{0,63}(?:[&|]\w[\w.+-]{0,63}){0,31}", re.ASCII)
_COUNT = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_MEMORY = re.compile(r"[1-9][0-9]{0,8}[KMGT]?", re.ASCII)
_GPUS = re.compile(r"(?:[A-Za-z][\w.+-]{0,63}:)?[1-9][0-9]{0,3}", re.ASCII)
_UNITS = re.compile(r"(?:([0-9]{1,4})d-?)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?", re.ASCII)
_SLURM_TIMES = (  # minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
    re.compile(r"(?P<m>[0-9]{1,6})(?::(?P<s>[0-9]{1,2}))?", re.ASCII),
    re.compile(r"(?P<h>[0-9]{1,5}):(?P<m>[0-9]{1,2}):(?P<s>[0-9]{1,2})", re.ASCII),
    re.compile(r"(?P<d>[0-9]{1,4})-(?P<h>[0-9]{1,2})(?::(?P<m>[0-9]{1,2})(?::(?P<s>[0-9]{1,2}))?)?", re.ASCII),
)
_SECONDS = {"d": _DAY_S, "h": 3600, "m": 60, "s": 1}


class SlurmOptions(Struct, frozen=True, kw_only=True):
    """The requests of a job to Slurm. A field that is not set is left to the defaults of the Slurm cluster.

    Attributes
    ----------
    partition, account, qos : names, as Slurm's options of the same names.
    constraint : required features of the nodes, joined by ``&`` or ``|``.
    time_s : time limit in seconds; `UNLIMITED` for none.
    nodes : number of nodes; more than one needs the engine ``mpi``.
    tasks : MPI ranks in all; default: one for each worker, and one for the driver.
    cpus : processors of each task; default: one for each worker of the engine ``local``, else one.
    memory : memory of each node, such as ``8G``.
    gpus : GPUs of each node, such as ``2`` or ``a100:2``.
    array_limit : runs of a comparison at a time.
    lead_s : time between the signal to the job and its time limit, in seconds; default `LEAD_S`, and at most half of the limit.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time_s: int | None = None
    nodes: int = 1
    tasks: int | None = None
    cpus: int | None = None
    memory: str = ""
    gpus: str = ""
    array_limit: int | None = None
    lead_s: int | None = None

    @property
    def lead(self) -> int:
        """The time between the signal and the time limit, in seconds."""
        if self.lead_s is not None:
            return self.lead_s
        return LEAD_S if self.time_s in (None, UNLIMITED) else min(LEAD_S, self.time_s // 2)


def read_options(given: str | Mapping[str, Any]) -> SlurmOptions:
    """Return the options that a text ``key=value,...`` or a mapping gives; an empty text leaves all to Slurm.

    Raises
    ------
    ConfigurationError : a key is unknown or given twice, or a value is not of its form.
    """
    pairs = _pairs(given) if isinstance(given, str) else [(str(key), str(value)) for key, value in given.items()]
    found: dict[str, Any] = {}
    for key, text in pairs:
        if key not in _KEYS:
            raise ConfigurationError(
                f"--slurm has no key {key!r}{did_you_mean(key, _KEYS)} known: {', '.join(sorted(_KEYS))}"
            )
        field, parse = _KEYS[key]
        if field in found:
            raise ConfigurationError(f"--slurm gives {key!r} twice")
        try:
            found[field] = parse(text)
        except ValueError as error:
            raise ConfigurationError(f"--slurm: {key} must be {error}, not {text!a}") from None
    options = msgspec.convert(found, SlurmOptions)
    if options.time_s not in (None, UNLIMITED) and options.lead >= (options.time_s or 0):
        raise ConfigurationError(
            f"--slurm: lead ({options.lead} s) must be shorter than the time limit ({options.time_s} s)"
        )
    return options


def time_text(time_s: int) -> str:
    """Return a time limit in Slurm's form ``days-hours:minutes:seconds``."""
    if time_s == UNLIMITED:
        return "UNLIMITED"
    days, rest = divmod(time_s, _DAY_S)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(",") if text.strip() else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ConfigurationError(f"--slurm {text!a}: write KEY=VALUE,KEY=VALUE, such as partition=short,time=30m")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _matching(pattern: re.Pattern[str], form: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(form)
        return text

    return parse


def _count(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise ValueError("a number from 1 to 999999")
    return int(text)


def _time(text: str) -> int:
    if text.lower() in ("unlimited", "infinite"):
        return UNLIMITED
    return _duration(text, "a time limit such as 30m, 2h, 1d-12h, or in Slurm's form 1-12:00:00", _SLURM_TIMES)


def _lead(text: str) -> int:
    form = f"a duration such as 60s or 5m, at most {_MAX_LEAD_S} s"
    lead_s = _duration(text, form)
    if lead_s > _MAX_LEAD_S:
        raise ValueError(form)
    return lead_s


def _duration(text: str, form: str, others: tuple[re.Pattern[str], ...] = ()) -> int:
    """Return a duration in seconds, with units as ``1d12h`` or in one of the other forms."""
    with_units = _UNITS.fullmatch(text)
    parts = dict(zip("dhms", with_units.groups(), strict=True)) if with_units and text else {}
    for other in others:
        if not parts and (match := other.fullmatch(text)):
            parts = match.groupdict()
    total_s = sum(int(value) * _SECONDS[unit] for unit, value in parts.items() if value)
    if not total_s:  # for Slurm, 0 is no limit
        raise ValueError(form)
    return total_s


_KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "partition": ("partition", _matching(_NAME, "the name of a partition")),
    "account": ("account", _matching(_NAME, "the name of an account")),
    "qos": ("qos", _matching(_NAME, "the name of a quality of service")),
    "constraint": ("constraint", _matching(_FEATURES, "features of nodes joined by & or |")),
    "time": ("time_s", _time),
    "nodes": ("nodes", _count),
    "tasks": ("tasks", _count),
    "cpus": ("cpus", _count),
    "memory": ("memory", _matching(_MEMORY, "an amount of memory for each node such as 500M or 8G")),
    "gpus": ("gpus", _matching(_GPUS, "a number of GPUs for each node such as 2 or a100:2")),
    "array_limit": ("array_limit", _count),
    "lead": ("lead_s", _lead),
}
"""The field and the parser of each key."""
