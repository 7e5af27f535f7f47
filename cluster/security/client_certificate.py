"""Tells a handler which client certificate a connection has shown."""

import ssl
from typing import Any

from aiohttp import web


def client_certificate_name(request: web.Request) -> str | None:
    """Return the common name of the client's certificate, which an authority of `http_tls_client_ca` has signed; None
    without TLS or without a certificate. It was verified, and is read, once per connection.
    """
    return getattr(request.protocol, "client_name", None)


def common_name(connection: ssl.SSLObject | None) -> str | None:
    """Return the common name of the certificate that the other side of a TLS connection has shown; None if it has not
    exactly one, is empty, or the certificate was not verified.
    """
    if connection is None or connection.context.verify_mode == ssl.CERT_NONE:
        return None
    shown: dict[str, Any] = dict(connection.getpeercert() or {})
    parts = [part for together in shown.get("subject", ()) for part in together]
    names = [value for kind, value in parts if kind == "commonName"]
    return names[0] or None if len(names) == 1 else None
