"""Certificates and keys in PEM files: they are loaded with errors that say what to do, and noticed when they change.

TLS between peers (tls.py) and TLS for clients (cluster/process/http_tls.py) both load their files by it.
"""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE_BYTES_MAX: Final = 1024 * 1024
HANDSHAKE_ROUNDS_MAX: Final = 10
CERTIFICATE: Final = "CERTIFICATE"
PRIVATE_KEY: Final = "PRIVATE KEY"

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
# Numbers of X509_V_ERR_* in OpenSSL's x509_vfy.h; the module ssl has no names for them.


class TlsError(Exception):
    """The files cannot be used; the message names the file and the next step."""


class PemFile(NamedTuple):
    """A file, and the option that names it."""

    option: str
    path: str

    def __str__(self) -> str:
        return f"{self.option} {self.path}"


class Loaded(NamedTuple):
    """Content of the files at the time when they were read."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    ends_s: int
    """Seconds since 1970 when the certificate ends, or the authority that issued it, whichever is earlier."""
    stamp: tuple[tuple[int, ...], ...]


class TlsFiles:
    """Owns the contexts of some files, until the files are replaced. Use it on the event loop only, except `look`."""

    def __init__(self, files: Sequence[PemFile], load: Callable[[], Loaded]) -> None:
        """Load the files by `load`, now and whenever they have changed. Raises its TlsError."""
        self._files = tuple(files)
        self._load = load
        self._loaded = load()

    @property
    def client(self) -> ssl.SSLContext:
        """The context for the next connection that this node opens."""
        return self._loaded.client

    @property
    def server(self) -> ssl.SSLContext:
        """The context for the next connection that this node accepts."""
        return self._loaded.server

    @property
    def ends_s(self) -> int:
        """Seconds since 1970 when this node's certificate ends, or the authority that issued it."""
        return self._loaded.ends_s

    def look(self) -> Loaded | None:
        """Return what the files say if they were replaced since the last `use`, otherwise None. Raises TlsError when
        they cannot be used. Reads files, and may be called in any thread.
        """
        return None if stamp_of(self._files) == self._loaded.stamp else self._load()

    def use(self, loaded: Loaded) -> None:
        """Use these files for all connections from now on. Existing connections go on as they are."""
        self._loaded = loaded


def stamp_of(files: Sequence[PemFile]) -> tuple[tuple[int, ...], ...]:
    """Return numbers that change when a file is replaced or written."""
    stamps: list[tuple[int, ...]] = []
    for file in files:
        try:
            status = Path(file.path).stat()
            stamps.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        except OSError as error:
            stamps.append((error.errno or 0,))
    return tuple(stamps)


def require_unchanged(files: Sequence[PemFile], stamp: tuple[tuple[int, ...], ...]) -> None:
    """Raise TlsError when the files have another stamp by now: what was read may be half of two versions."""
    if stamp != stamp_of(files):
        raise TlsError(f"{files[0]}: the files were changed while they were read; read them again")


def require_pem(file: PemFile, what: str, how_to_make: str) -> None:
    """Raise TlsError, which names this one file, when it is unreadable or has no such block."""
    try:
        with open(file.path, "rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(f"{file}: {error.strerror}; make it readable for the user of the node") from None
    if len(content) > FILE_BYTES_MAX or f"{what}-----".encode() not in content:
        raise TlsError(f"{file}: the file has no {what} in PEM form; {how_to_make}")


def load_certificate(context: ssl.SSLContext, certificate: PemFile, key: PemFile, how_to_make: str) -> None:
    """Give the context a certificate with its key. Raises TlsError when they cannot be read or are no pair."""

    def refuse_password() -> str:
        raise TlsError(f"{key}: the key is encrypted; store it without a password, readable by its owner only")

    try:
        context.load_cert_chain(certificate.path, key.path, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"{key}: the key does not belong to the certificate {certificate.path}; give the key with which the "
                "certificate was requested"
            ) from None
        raise TlsError(f"{certificate} or {key}: cannot be read ({error.reason or error}); {how_to_make}") from None
    except OSError as error:
        raise TlsError(f"{certificate} or {key}: {error.strerror}") from None


def load_authorities(context: ssl.SSLContext, authorities: PemFile, how_to_make: str) -> None:
    """Let the context trust the authorities, of which each may be one below a root. Raises TlsError."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(authorities.path)
    except OSError as error:  # ssl.SSLError is one
        raise TlsError(f"{authorities}: cannot be read ({error.strerror or error}); {how_to_make}") from None


def meet(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Let the contexts shake hands in memory, and return both ends, the client's first. The client means the server
    `host`. Raises ssl.SSLError when either of them refuses.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    opening = client.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [opening, accepting]
    for _ in range(HANDSHAKE_ROUNDS_MAX):
        for side in [*waiting]:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return opening, accepting
    raise ssl.SSLError("the handshake does not end")


def explain_dates(error: ssl.SSLCertVerificationError, certificate: PemFile, authority: str) -> str:
    """Return why a certificate is refused, with the next step if its dates are the reason; `authority` says in words
    which one issued it.
    """
    if error.verify_code == _EXPIRED:
        return f"{certificate}: the certificate, or {authority}, has expired; make a new one"
    if error.verify_code == _NOT_YET_VALID:
        return (
            f"{certificate}: the certificate, or {authority}, is not yet valid; check the clock of this machine, or "
            "make a new one"
        )
    return f"{certificate}: the certificate is refused ({error.verify_message})"


def ends_s_of(certificate: dict[str, Any], context: ssl.SSLContext) -> int:
    """Return the seconds since 1970 when the certificate ends, or the authority of the context that issued it."""
    issuers = [each for each in context.get_ca_certs() if each["subject"] == certificate["issuer"]]
    ends_s = int(ssl.cert_time_to_seconds(certificate["notAfter"]))
    # Of two authorities of one name, as while one replaces the other, the later one counts.
    issuer_ends_s = max((int(ssl.cert_time_to_seconds(str(each["notAfter"]))) for each in issuers), default=ends_s)
    return min(ends_s, issuer_ends_s)
