"""TLS for clients: the files by which a node serves its HTTP API, and the authorities of the URLs that it calls."""

import ssl
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig
from cluster.process.trust import require_file
from raft.peers.pem_files import (
    CERTIFICATE,
    PRIVATE_KEY,
    Loaded,
    PemFile,
    TlsError,
    TlsFiles,
    ends_s_of,
    explain_dates,
    load_authorities,
    load_certificate,
    meet,
    require_pem,
    require_unchanged,
    stamp_of,
)

HOW_TO_MAKE: Final = "docs/configuration.md, TLS for clients, shows how to make certificates"
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2; those of TLS 1.3 are all good."""

_WRONG_PURPOSE: Final = 26
_OTHER_HOST: Final = frozenset({62, 64})
# Numbers of X509_V_ERR_* in OpenSSL's x509_vfy.h; the module ssl has no names for them.


class HttpTls(TlsFiles):
    """Owns the context with which a node accepts clients. Use it on the event loop only, except `look`."""

    def __init__(self, certificate: str, key: str, client_ca: str | None, urls: Sequence[str]) -> None:
        """Load the files and try them. Raises TlsError when no client that means one of `urls` would accept the
        certificate.
        """
        files = [PemFile("http_tls_cert", certificate), PemFile("http_tls_key", key)]
        if client_ca is not None:
            files.append(PemFile("http_tls_client_ca", client_ca))
        super().__init__(files, lambda: load(files, urls))


def http_tls(config: NodeConfig) -> HttpTls | None:
    """Return the TLS of the HTTP API; None when the options do not ask for it. Raises TlsError."""
    if config.http_tls_cert is None or config.http_tls_key is None:
        return None
    urls = [url for url in (config.advertised_url(), config.advertised_admin_url()) if url is not None]
    return HttpTls(config.http_tls_cert, config.http_tls_key, config.http_tls_client_ca, urls)


def validate_http_tls(config: NodeConfig) -> None:
    """Check the options, and the files as a client would. Raises ConfigError."""
    names = ("http_tls_cert", "http_tls_key", "http_tls_client_ca", "http_ca")
    certificate, key, client_ca, _ = given = [getattr(config, name) for name in names]
    if (certificate is None) != (key is None):
        missing = "http_tls_cert" if certificate is None else "http_tls_key"
        raise ConfigError(f"{missing}: give http_tls_cert and http_tls_key together, or none of them")
    if client_ca is not None and certificate is None:
        raise ConfigError("http_tls_client_ca: clients show certificates to http_tls_cert only; give it, too")
    for name, path in zip(names, given, strict=True):
        if path is not None:
            require_file(name, path)
    url = config.advertised_url()
    if certificate is not None and not url.startswith("https://"):
        option = "http_url" if config.http_url is not None else "peers"
        raise ConfigError(
            f"{option}: {url} is this node's URL, and http_tls_cert is given: clients need a URL that begins with "
            "https://"
        )
    if certificate is not None and not (config.advertised_admin_url() or "https://").startswith("https://"):
        raise ConfigError(f"admin_url: {config.admin_url}: http_tls_cert is given, so it has to begin with https://")
    try:
        http_tls(config)
        if config.http_ca is not None:
            trusting(config.http_ca)
    except TlsError as error:
        raise ConfigError(str(error)) from None


def load(files: list[PemFile], urls: Sequence[str]) -> Loaded:
    """Read certificate, key and, if it is among the files, the authorities of clients. Let a client that means each of
    `urls`, and trusts the certificate, meet this node in memory. Raises TlsError when the files are no use.
    """
    certificate, key = files[:2]
    stamp = stamp_of(files)
    require_pem(certificate, CERTIFICATE, HOW_TO_MAKE)
    require_pem(key, PRIVATE_KEY, HOW_TO_MAKE)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.set_ciphers(CIPHERS)
    server.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    server.set_alpn_protocols(["http/1.1"])
    load_certificate(server, certificate, key, HOW_TO_MAKE)
    if len(files) > 2:
        require_pem(files[2], CERTIFICATE, HOW_TO_MAKE)
        load_authorities(server, files[2], HOW_TO_MAKE)
        server.verify_mode = ssl.CERT_OPTIONAL
        server.num_tickets = 0  # a resumed session would not show its certificate again
        server.options |= ssl.OP_NO_TICKET
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_authorities(client, certificate, HOW_TO_MAKE)  # which authorities clients trust is not this node's to know
    shown: dict[str, Any] = {}
    for host in dict.fromkeys(urlsplit(url).hostname or "" for url in urls):
        try:
            shown = dict(meet(client, server, host)[0].getpeercert() or {})
        except ssl.SSLCertVerificationError as error:
            raise TlsError(f"{_why_refused(error, certificate, host)}; {HOW_TO_MAKE}") from None
        except ssl.SSLError as error:
            raise TlsError(f"{certificate}: no handshake works with it: {error}; {HOW_TO_MAKE}") from None
    require_unchanged(files, stamp)
    return Loaded(client, server, ends_s_of(shown, client), stamp)


def trusting(http_ca: str | None, *, system: bool = False) -> ssl.SSLContext:
    """Return a context for calls of https URLs which trusts `http_ca`, and the authorities of the system if `system` is
    set or `http_ca` is None. Raises TlsError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if system or http_ca is None:
        context.load_default_certs()
    if http_ca is not None:
        file = PemFile("http_ca", http_ca)
        require_pem(file, CERTIFICATE, HOW_TO_MAKE)
        load_authorities(context, file, HOW_TO_MAKE)
    return context


def webhook_trust(config: NodeConfig) -> ssl.SSLContext | None:
    """Return the context for webhooks: None, which trusts the authorities of the system, or one that trusts `http_ca`
    besides. Raises TlsError.
    """
    return None if config.http_ca is None else trusting(config.http_ca, system=True)


def _why_refused(error: ssl.SSLCertVerificationError, certificate: PemFile, host: str) -> str:
    if error.verify_code in _OTHER_HOST:
        return (
            f"{certificate}: the certificate does not name {host}, at which clients reach this node; it needs it among "
            "its alternative names, as DNS name or IP address, or http_url or admin_url has to be a name that it has"
        )
    if error.verify_code == _WRONG_PURPOSE:
        return f"{certificate}: the certificate may not be used by servers; its extendedKeyUsage needs serverAuth"
    return explain_dates(error, certificate, "an authority in its file")
