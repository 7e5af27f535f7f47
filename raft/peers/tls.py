"""TLS contexts for mutual TLS between peers."""

import ssl

from raft.config import TlsConfig


def make_client_tls(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that presents our certificate; the peer's must be signed by the CA and name the host we dial."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca_file)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def make_server_tls(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that demands a certificate signed by the CA from every peer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca_file)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
