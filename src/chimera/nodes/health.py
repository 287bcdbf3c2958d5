"""Asking a node whether it is well; run as a module, it is the health check of a worker's container."""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

PATH = "/health"


def unwell(
    url: str,
    *,
    token: str | None = None,
    tls_cert: Path | str | None = None,
    tls_key: Path | str | None = None,
    timeout_s: float = 1.0,
) -> str:
    """Return why the node at ``url`` (scheme, host, port) does not answer its health check; empty when it does.

    ``tls_cert`` is trusted beside the system's certificates, whatever host it names: the node is ours, on this machine. With
    its key, it is also shown to a node that asks its clients for a certificate.
    """
    place = urlsplit(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection = _connection(
            place.scheme, place.hostname or "localhost", place.port, (tls_cert, tls_key), timeout_s
        )
        try:
            connection.request("GET", PATH, headers=headers)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return "" if status == http.HTTPStatus.OK else f"GET {PATH} answered {status}"


def _connection(
    scheme: str, host: str, port: int | None, tls: tuple[Path | str | None, Path | str | None], timeout_s: float
) -> http.client.HTTPConnection:
    if scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the node's certificate may itself be what is trusted
    tls_cert, tls_key = tls
    if tls_cert is not None:
        context.load_verify_locations(tls_cert)
        if tls_key is not None:
            context.load_cert_chain(tls_cert, tls_key)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def main() -> None:
    """Leave with 1, and say why, unless the worker of this container is well."""
    tls_cert = os.environ.get("CHIMERA_TLS_CERT")
    tls_key = os.environ.get("CHIMERA_TLS_KEY") if os.environ.get("CHIMERA_TLS_CLIENT_CA") else None
    url = f"{'https' if tls_cert else 'http'}://127.0.0.1:{os.environ['CHIMERA_WORKERS_PORT']}"
    sys.exit(unwell(url, token=os.environ.get("CHIMERA_TOKEN"), tls_cert=tls_cert, tls_key=tls_key, timeout_s=5.0) or 0)


if __name__ == "__main__":
    main()
