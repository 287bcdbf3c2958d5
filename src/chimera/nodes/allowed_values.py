"""Formats of settings, and the messages that describe the allowed values."""

from __future__ import annotations

import re
from typing import Any

MIN_CPU_SHARES, MAX_CPU_SHARES = 2, 262_144  # the kernel's limits
NODE = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
)  # a file name that Docker also accepts as a host name
NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([<>=!~]=?[A-Za-z0-9.*+!,<>=~-]+)?")
FOLDER = re.compile(r"(?!\.{1,2}$)[^/\0]+")
IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")
TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")  # characters allowed in an Authorization header

_ALLOWED = {
    "network_name": "a name of letters, digits, '_', '.' and '-' that starts with a letter or digit",
    "network_prefix": "the first three numbers of an IPv4 network, such as '192.168.10'",
    "network_subnet_mask": "a whole number from 8 to 29",
    "workers_nodes_names": "a list of different names (letters, digits, '-' and '_'), as JSON or a Python literal",
    "workers_cpu_shares": f"a list of whole numbers from {MIN_CPU_SHARES} to {MAX_CPU_SHARES}, one for each worker",
    "workers_mapped_ports": "a list of different ports from 1 to 65535, one for each worker",
    "workers_addresses": "a list of different addresses such as 'http://host:5000', one for each worker",
    "workers_host": "an IP address or a host name",
    "workers_port": "a port from 0 to 65535 (0: any free port)",
    "workers_endpoints_max_retries": "a whole number from 0 to 1000",
    "workers_endpoints_timeout": "a number of seconds above 0, at most 86400",
    "launcher": "'auto', 'docker' or 'process'",
    "token": "1 to 4096 visible ASCII characters without spaces",
    "tls_cert": "the path of an existing file",
    "tls_key": "the path of an existing file",
    "tls_client_ca": "the path of an existing file",
    "insecure": "1 or 0",
    "published_on_loopback": "1 or 0",
    "base_image": "the name of a container image, such as 'python:3.12-slim'",
    "image_packages": "a list of requirements such as 'torch>=2.6', as JSON or a Python literal",
    "max_body_bytes": "a whole number of bytes, at least 1024",
    "share_samples": "true or false",
    "train_data": "the path of a folder",
    "worker_name": "the name of a folder, without '/'",
    "start_timeout": "a number of seconds above 0, at most 86400",
}


def message_of(error: Any) -> str:
    """Return a message for one of pydantic's errors: the variable, its value, and the allowed values."""
    if not error["loc"]:  # an error of `Settings._agree`, about several fields
        return str(error["ctx"]["error"])
    field = str(error["loc"][0])
    value = "its value" if field == "token" else repr(error["input"])  # for a list, the invalid element
    return f"{variable_of(field)}: {value} cannot be used; allowed: {_ALLOWED[field]}"


def variable_of(field: str) -> str:
    """Return the environment variable of a setting."""
    return f"CHIMERA_{field.upper()}"
