"""Settings of nodes (names, ports, addresses, limits, secrets) from keywords, the environment or `chimera.toml`.

A setting has the same name everywhere: ``workers_port`` as a keyword and in the table ``[nodes]`` of `chimera.toml`,
``CHIMERA_WORKERS_PORT`` in the environment. The order of precedence is keyword, environment, file, default.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.nodes.allowed_values import (
    FOLDER,
    IMAGE,
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    NETWORK,
    NODE,
    REQUIREMENT,
    TOKEN,
    message_of,
    variable_of,
)
from chimera.nodes.one_line import print_in_one_line
from chimera.nodes.settings_file import FILE, MASTER_KEYS, TABLE, read_table
from chimera.nodes.validators import is_host, parse_list, strict_integer, within_bounds

try:
    from pydantic import BeforeValidator, Field, StrictInt, StrictStr, ValidationError, field_validator, model_validator
    from pydantic_settings import (
        BaseSettings,
        InitSettingsSource,
        NoDecode,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
    )
except ModuleNotFoundError as error:
    raise MissingExtraError("a REST node", error.name or "pydantic_settings", "nodes") from None


def _main_stem() -> str | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if file else None


Integer = Annotated[int, BeforeValidator(strict_integer)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Names = Annotated[tuple[StrictStr, ...], NoDecode, BeforeValidator(parse_list)]
Numbers = Annotated[tuple[StrictInt, ...], NoDecode, BeforeValidator(parse_list)]


class Settings(BaseSettings):
    """The validated settings of a node. `read_settings` creates them.

    Attributes
    ----------
    network_name, network_prefix, network_subnet_mask : the Docker network of the workers, ``<prefix>.0/<mask>``.
    workers_nodes_names : name of each worker; its file is ``chimera_workers/<name>.py``, its data ``<train_data>/<name>``.
    workers_cpu_shares : weight of each worker when processors are scarce; only their ratios matter.
    workers_mapped_ports : port of each worker on this machine.
    workers_addresses : addresses of workers that were started elsewhere; the master then starts none.
    workers_host : address on which masters, and manually started workers, listen.
    workers_port : port of a worker in its container, or of a manually started worker.
    workers_endpoints_max_retries : maximum number of retries of a failed request to a worker.
    workers_endpoints_timeout : timeout of a request to a worker, in seconds.
    launcher : ``docker``, ``process``, or ``auto``: Docker if its daemon answers, otherwise processes.
    token : token that every request needs, in ``Authorization: Bearer <token>``. Without it nodes answer this machine only.
    tls_cert, tls_key : files of a certificate and its key; with them all nodes use HTTPS.
    tls_client_ca : file of certificate authorities; with it, clients must present a certificate signed by one of them.
    insecure : whether nodes may listen beyond loopback with neither a token nor client certificates.
    published_on_loopback : whether this node runs in a container whose port is published on loopback only; set by launchers.
    base_image : image with Python on which the workers' image is built.
    image_packages : packages of that image besides Chimera and its dependencies, such as ``torch``.
    max_body_bytes : maximum length of a request's body.
    share_samples : whether a worker's data sample contains rows of its data; if not, it has columns and classes only.
    train_data : folder that contains the data folder of each worker.
    worker_name : name of the worker in this process; default: the name of its main file.
    start_timeout : seconds within which the workers must start.
    """

    model_config = SettingsConfigDict(env_prefix="CHIMERA_", frozen=True, extra="forbid", hide_input_in_errors=True)

    network_name: str = "chimera-network"
    network_prefix: str = "192.168.10"
    network_subnet_mask: Integer = Field(24, ge=8, le=29)
    workers_nodes_names: Names = Field(("worker",), min_length=1)
    workers_cpu_shares: Numbers = (2,)
    workers_mapped_ports: Numbers = (101,)
    workers_addresses: Names = ()
    workers_host: str = "127.0.0.1"
    workers_port: Integer = Field(80, ge=0, le=65_535)
    workers_endpoints_max_retries: Integer = Field(0, ge=0, le=1000)
    workers_endpoints_timeout: Seconds = 100.0
    launcher: Literal["auto", "docker", "process"] = "auto"
    token: str | None = Field(None, repr=False)
    tls_cert: Path | None = None
    tls_key: Path | None = Field(None, repr=False)
    tls_client_ca: Path | None = None
    insecure: bool = False
    published_on_loopback: bool = False
    base_image: str = "python:3.12-slim"
    image_packages: Names = ()
    max_body_bytes: Integer = Field(256 * 2**20, ge=1024)
    share_samples: bool = True
    train_data: Path = Path("chimera_train_data")
    worker_name: str | None = Field(default_factory=_main_stem)
    start_timeout: Seconds = 120.0

    @property
    def workers_urls(self) -> tuple[str, ...]:
        """Address of each worker from this machine, in the order of the names."""
        if self.workers_addresses:
            return self.workers_addresses
        scheme = "https" if self.tls_cert else "http"
        return tuple(f"{scheme}://localhost:{port}" for port in self.workers_mapped_ports)

    @property
    def client_key(self) -> Path | None:
        """The key of the certificate if nodes use it as a client certificate; otherwise None."""
        return self.tls_key if self.tls_client_ca else None

    @property
    def network(self) -> ipaddress.IPv4Network:
        """Network of the workers' containers."""
        return ipaddress.IPv4Network(f"{self.network_prefix}.0/{self.network_subnet_mask}")

    def worker_environment(self) -> dict[str, str]:
        """Return the settings that a worker needs, as environment variables."""
        variables: dict[str, object] = {
            "CHIMERA_WORKERS_ENDPOINTS_MAX_RETRIES": self.workers_endpoints_max_retries,
            "CHIMERA_WORKERS_ENDPOINTS_TIMEOUT": self.workers_endpoints_timeout,
            "CHIMERA_MAX_BODY_BYTES": self.max_body_bytes,
            "CHIMERA_SHARE_SAMPLES": str(self.share_samples).lower(),
            "CHIMERA_TRAIN_DATA": self.train_data.absolute(),
        }
        if self.token:
            variables["CHIMERA_TOKEN"] = self.token
        if self.tls_cert and self.tls_key:
            variables |= {"CHIMERA_TLS_CERT": self.tls_cert.absolute(), "CHIMERA_TLS_KEY": self.tls_key.absolute()}
        if self.tls_client_ca:
            variables["CHIMERA_TLS_CLIENT_CA"] = self.tls_client_ca.absolute()
        return {name: str(value) for name, value in variables.items()}

    @field_validator("network_name", "base_image", "token", "workers_host", "worker_name")
    @classmethod
    def _format(cls, value: str | None, info: Any) -> str | None:
        if value is None:
            return None
        patterns = {"network_name": NETWORK, "base_image": IMAGE, "token": TOKEN, "worker_name": FOLDER}
        pattern = patterns.get(info.field_name)
        if not (pattern.fullmatch(value) if pattern else is_host(value)):
            raise ValueError("wrong format")
        return value

    @field_validator("network_prefix")
    @classmethod
    def _prefix(cls, value: str) -> str:
        if not re.fullmatch(r"\d{1,3}(\.\d{1,3}){2}", value):
            raise ValueError("not three numbers")
        address = ipaddress.IPv4Address(f"{value}.0")
        if address.is_loopback or address.is_multicast or address.is_reserved or address.packed[0] == 0:
            raise ValueError("not a network for hosts")
        return value

    @field_validator("workers_nodes_names")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(NODE.fullmatch, value)) or len({name.lower() for name in value}) < len(value):
            raise ValueError("not different names")
        return value

    @field_validator("image_packages")
    @classmethod
    def _packages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(REQUIREMENT.fullmatch, value)):
            raise ValueError("not requirements")
        return value

    @field_validator("workers_cpu_shares")
    @classmethod
    def _shares(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return within_bounds(value, MIN_CPU_SHARES, MAX_CPU_SHARES)

    @field_validator("workers_mapped_ports")
    @classmethod
    def _ports(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("not different")
        return within_bounds(value, 1, 65_535)

    @field_validator("workers_addresses")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(Address.of(url, "the address of a worker").url for url in value)
        if len(set(found)) < len(found):
            raise ValueError("not different")
        return found

    @field_validator("tls_cert", "tls_key", "tls_client_ca")
    @classmethod
    def _file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("not there")
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        started_here = ("workers_cpu_shares", "workers_mapped_ports")
        of_workers = ("workers_addresses",) if self.workers_addresses else started_here
        counts = {name: len(getattr(self, name)) for name in ("workers_nodes_names", *of_workers)}
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{variable_of(name)} has {count}" for name, count in counts.items())
            raise ConfigurationError(f"the lists must have the same length, one element for each worker: {lengths}")
        for url in self.workers_addresses if self.token else ():
            Address.of(url).check_token_is_protected()
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("CERT", "KEY") if self.tls_cert else ("KEY", "CERT")
            raise ConfigurationError(f"CHIMERA_TLS_{given} is set, but CHIMERA_TLS_{missing} is not: set both or none")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigurationError(
                "CHIMERA_TLS_CLIENT_CA is set, but CHIMERA_TLS_CERT is not: client certificates need HTTPS"
            )
        whole = f"CHIMERA_NETWORK_PREFIX {self.network_prefix!r} with CHIMERA_NETWORK_SUBNET_MASK {self.network_subnet_mask}"
        try:
            network = self.network
        except ValueError:
            raise ConfigurationError(
                f"{whole}: {self.network_prefix}.0/{self.network_subnet_mask} has host bits set; "
                "with a mask below 24 the prefix must end in zeros"
            ) from None
        max_workers = min(network.num_addresses, 256) - 3  # minus the network, gateway and broadcast addresses
        if counts["workers_nodes_names"] > max_workers:
            raise ConfigurationError(
                f"{whole} has addresses for {max_workers} workers, but there are {len(self.workers_nodes_names)}"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic passes these by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order of precedence: keywords, environment, file."""
        table = {key: value for key, value in read_table().items() if key not in MASTER_KEYS}
        return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=table)


def settings_of_program() -> Settings:
    """Read the settings for a program that creates a node without a parameter ``settings``.

    An invalid value ends the program with one line unless the program catches the error.

    Raises
    ------
    ConfigurationError : see `read_settings`.
    """
    try:
        return read_settings()
    except ConfigurationError as error:
        print_in_one_line(error)
        raise


def read_settings(**given: Any) -> Settings:
    """Read the current settings; ``given`` overrides the environment, which overrides `chimera.toml`.

    Raises
    ------
    ConfigurationError : a value is invalid; the message names the variable, the value and the allowed values.
    """
    known = Settings.model_fields
    for place, keys in (("a node", given), (f"{FILE}, table [{TABLE}]:", read_table())):
        unknown = [key for key in keys if key not in known and (keys is given or key not in MASTER_KEYS)]
        if unknown:
            raise ConfigurationError(f"{place} has no setting {unknown[0]!r}; the settings are: {', '.join(known)}")
    try:
        return Settings(**given)
    except ValidationError as error:
        first = {one["loc"][:1]: one for one in reversed(error.errors())}  # one error of each field
        raise ConfigurationError("; ".join(map(message_of, reversed(first.values())))) from None
