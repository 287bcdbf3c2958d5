"""TLS settings with which the driver connects to nodes."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from chimera.core.errors import ConfigurationError


def tls_context(ca: str | None, check_host: bool, client: Sequence[str] | None) -> ssl.SSLContext | None:
    """Return the settings for these options of `HttpEngine`; None for the defaults of the system.

    Raises
    ------
    ConfigurationError : a file of certificates or keys cannot be used.
    """
    if ca is None and check_host and client is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigurationError(f"engine 'http', option 'tls_ca': {ca!r} cannot be used: {error}") from error
    if client is not None:
        try:
            certificate, key = client
            context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"engine 'http', option 'tls_client': {client!r} cannot be used: {error}; give a certificate and its key"
            ) from error
    context.check_hostname = check_host
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
