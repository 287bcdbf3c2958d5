"""The tokens of the nodes of a driver: one per node, so that no node learns the token of another."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from chimera.core.address import Address
from chimera.core.errors import ConfigurationError


def tokens_of(
    addresses: Sequence[Address], default: str | None, tokens: str | Mapping[str, str] | None
) -> list[str | None]:
    """Return the token of each node.

    Parameters
    ----------
    default : token of nodes that ``tokens`` does not list.
    tokens : tokens by address, or a TOML file with them.

    Raises
    ------
    ConfigurationError : a token or the file cannot be used, an address is not that of a node, or a token would be sent
        unencrypted.
    """
    table = _read(Path(tokens)) if isinstance(tokens, str) else dict(tokens or {})
    for token in (default, *table.values()):
        if token is not None and not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
            raise ConfigurationError("engine 'http', option 'tokens': a token is printable ASCII text")
    by_place = {_place(Address.of(url, "engine 'http', option 'tokens':")): token for url, token in table.items()}
    if unknown := set(by_place) - set(map(_place, addresses)):
        _, host, port, path = min(unknown)
        raise ConfigurationError(f"engine 'http', option 'tokens': there is no node at {host}:{port}{path}")
    found = [by_place.get(_place(address), default) for address in addresses]
    for address, token in zip(addresses, found, strict=True):
        if token:
            address.check_token_is_protected()
    return found


def _place(address: Address) -> tuple[bool, str, int, str]:
    return address.secure, address.host, address.port, address.path.rstrip("/")  # a proxy may serve several nodes


def _read(path: Path) -> dict[str, str]:
    try:
        return tomllib.loads(path.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"engine 'http', option 'tokens': {path} cannot be read: {error}") from error
