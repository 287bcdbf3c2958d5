"""Health checks of nodes. Run as a module, it is the health check of a worker's container."""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

PATH = "/health"


def health_problem(
    url: str,
    *,
    token: str | None = None,
    tls_cert: Path | str | None = None,
    tls_key: Path | str | None = None,
    timeout_s: float = 1.0,
) -> str:
    """Return why the health check of the node at ``url`` fails; an empty string if it succeeds.

    Parameters
    ----------
    url : scheme, host and port.
    token : the node's token.
    tls_cert : a certificate to trust besides those of the system, for any host name, because the node is on this machine.
    tls_key : key of ``tls_cert``; with it, the certificate is also sent to a node that requires client certificates.
    timeout_s : timeout of the request, in seconds.
    """
    parts = urlsplit(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection = _connection(
            parts.scheme, parts.hostname or "localhost", parts.port, (tls_cert, tls_key), timeout_s
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
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the node's own certificate may be the trusted one
    tls_cert, tls_key = tls
    if tls_cert is not None:
        context.load_verify_locations(tls_cert)
        if tls_key is not None:
            context.load_cert_chain(tls_cert, tls_key)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def main() -> None:
    """Exit with code 1 and a message unless the worker of this container is healthy."""
    tls_cert = os.environ.get("CHIMERA_TLS_CERT")
    tls_key = os.environ.get("CHIMERA_TLS_KEY") if os.environ.get("CHIMERA_TLS_CLIENT_CA") else None
    url = f"{'https' if tls_cert else 'http'}://127.0.0.1:{os.environ['CHIMERA_WORKERS_PORT']}"
    sys.exit(
        health_problem(url, token=os.environ.get("CHIMERA_TOKEN"), tls_cert=tls_cert, tls_key=tls_key, timeout_s=5.0)
        or 0
    )


if __name__ == "__main__":
    main()
