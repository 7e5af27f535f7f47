"""Tells a handler which client certificate a connection has shown."""

import ssl
from typing import Any, Final, NamedTuple

from aiohttp import web

_ENDLESS_MS: Final = 1 << 63


class ClientCertificate(NamedTuple):
    """The common name of a verified certificate, and the time in ms since 1970 when it ends."""

    name: str
    ends_ms: int


def client_certificate_name(request: web.Request) -> str | None:
    """Return the common name of the client's certificate, which an authority of `http_tls_client_ca` has signed; None
    without TLS or without a certificate. It was verified, and is read, once per connection.
    """
    certificate = _of(request)
    return None if certificate is None else certificate.name


def certificate_ends_ms(request: web.Request) -> int:
    """Return when the client's certificate ends, in ms since 1970, and the connection should; never without one."""
    certificate = _of(request)
    return _ENDLESS_MS if certificate is None else certificate.ends_ms


def _of(request: web.Request) -> ClientCertificate | None:
    return getattr(request.protocol, "client_certificate", None)


def certificate_of(connection: ssl.SSLObject | None) -> ClientCertificate | None:
    """Return the certificate that the other side of a TLS connection has shown; None if it has not exactly one common
    name, that is empty, or it was not verified.
    """
    if connection is None or connection.context.verify_mode == ssl.CERT_NONE:
        return None
    shown: dict[str, Any] = dict(connection.getpeercert() or {})
    parts = [part for together in shown.get("subject", ()) for part in together]
    names = [value for kind, value in parts if kind == "commonName"]
    if len(names) != 1 or not names[0]:
        return None
    return ClientCertificate(names[0], int(ssl.cert_time_to_seconds(shown["notAfter"])) * 1000)
