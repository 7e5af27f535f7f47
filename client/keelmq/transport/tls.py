"""TLS to the nodes: which servers are trusted, and which certificate this client shows."""

import os
import ssl
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from keelmq.errors import InvalidRequest
from keelmq.line_log import log

CA_FILE: Final = "KEELMQ_CA_FILE"
CERTIFICATE_FILE: Final = "KEELMQ_CERTIFICATE_FILE"
KEY_FILE: Final = "KEELMQ_KEY_FILE"


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None


@dataclass(frozen=True)
class Tls:
    """Files for https servers. A field that is not given has its value from the environment; None switches it off.

    Servers are always verified, their host names included. The files are read again when they change.
    """

    ca_file: str | None = field(default_factory=partial(_variable, CA_FILE))
    """PEM file with the authorities that are trusted, instead of those of the system; KEELMQ_CA_FILE."""
    certificate_file: str | None = field(default_factory=partial(_variable, CERTIFICATE_FILE))
    """PEM file with the certificate that this client shows, if any; KEELMQ_CERTIFICATE_FILE."""
    key_file: str | None = field(default_factory=partial(_variable, KEY_FILE))
    """PEM file with its key, not encrypted; KEELMQ_KEY_FILE. By default the key is in `certificate_file`."""


class TlsFiles:
    """Owns the context for new connections, made of the files of a `Tls`, or given. Belongs to one event loop."""

    def __init__(self, given: Tls | ssl.SSLContext | None) -> None:
        self._files = None if isinstance(given, ssl.SSLContext) else given or Tls()
        self._context = given if isinstance(given, ssl.SSLContext) else None
        self._stamp: tuple[tuple[int, ...], ...] = ()
        self._refused: tuple[tuple[int, ...], ...] = ()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection. Raises InvalidRequest when the files cannot be used; if they
        could be used before, the former context goes on.
        """
        if self._files is None:
            assert self._context is not None
            return self._context
        stamp = _stamp_of(self._files)
        if self._context is None or stamp not in (self._stamp, self._refused):
            try:
                self._context, self._stamp = _load(self._files), stamp
            except InvalidRequest as error:
                if self._context is None:
                    raise
                self._refused = stamp
                log.warning("the new TLS files are not used: %s", error.detail)
        return self._context

    def advice(self) -> str:
        """Return what to do when a server cannot be verified."""
        if self._files is None:
            return "the given SSLContext trusts no authority that signed it"
        trusted = "of the system" if self._files.ca_file is None else f"in ca_file {self._files.ca_file}"
        return (
            f"it must be signed by an authority {trusted} and name the host; give ca_file ({CA_FILE}) the authority of "
            "the cluster, and servers by names that their certificates have"
        )


def _stamp_of(files: Tls) -> tuple[tuple[int, ...], ...]:
    stamps: list[tuple[int, ...]] = []
    for file in (files.ca_file, files.certificate_file, files.key_file):
        try:
            status = Path(file).stat() if file is not None else None
        except OSError as error:
            stamps.append((error.errno or 0,))
        else:
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns) if status is not None else ())
    return tuple(stamps)


def _load(files: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the server and its name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca_file is None:
        context.load_default_certs()
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may be one below a root
        try:
            context.load_verify_locations(files.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise _unusable("ca_file", files.ca_file, error) from None
    if files.certificate_file is None:
        if files.key_file is not None:
            raise InvalidRequest("invalid_request", "key_file: give certificate_file, too")
        return context

    def refuse_password() -> str:
        raise InvalidRequest(
            "invalid_request", f"key_file {key_file}: the key is encrypted; store it without a password"
        )

    key_file = files.key_file or files.certificate_file
    try:
        context.load_cert_chain(files.certificate_file, key_file, refuse_password)
    except OSError as error:
        name = f"{files.certificate_file} or key_file {key_file}"
        raise _unusable("certificate_file", name, error) from None
    return context


def _unusable(name: str, file: str, error: OSError) -> InvalidRequest:
    reason = getattr(error, "reason", None) or error.strerror or error
    return InvalidRequest("invalid_request", f"{name} {file}: cannot be used ({reason}); it needs PEM")
