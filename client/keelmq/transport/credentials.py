"""Bearer tokens: where they come from, and the nodes that get them.

A token is given only to nodes that can be trusted with it: those that the caller named, those on this machine, and
those whose certificate was verified. A node that another node names and that has no TLS gets none, since anybody on the
way could be that node.
"""

import os
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Final

from keelmq.errors import InvalidRequest
from keelmq.plain_calls import check_plain_function
from keelmq.transport.http1 import Origin

VARIABLE: Final = "KEELMQ_TOKEN"
FILE_VARIABLE: Final = "KEELMQ_TOKEN_FILE"
FILE_LOOKED_AT_S: Final = 5.0
"""Seconds after which a token file is read again, so that a token can be replaced while the client runs."""
FILE_BYTES_MAX: Final = 8_192

TokenSource = str | Callable[[], str]
"""A token, or a function that returns the present one; it is called for every request and must not block."""


class TokenFile:
    """Reads a token from the first line of a file, and again when FILE_LOOKED_AT_S have passed."""

    def __init__(self, file: str | Path, clock: Callable[[], float] = monotonic) -> None:
        self._file = Path(file)
        self._clock = clock
        self._read_s = 0.0
        self._token = ""

    def __call__(self) -> str:
        """Return the token. Raises InvalidRequest when the file has none and never had one."""
        if self._token and self._clock() - self._read_s < FILE_LOOKED_AT_S:
            return self._token
        self._read_s = self._clock()
        try:
            with self._file.open("rb") as stream:
                line = stream.read(FILE_BYTES_MAX).decode("ascii", "replace").strip().partition("\n")[0].strip()
        except OSError as error:
            if self._token:  # it is being replaced
                return self._token
            raise InvalidRequest("invalid_request", f"token file {self._file}: {error.strerror}") from None
        try:
            self._token = _checked(line, f"token file {self._file}")
        except InvalidRequest:
            if not self._token:
                raise
        return self._token


class Credentials:
    """Credentials that a client shows to the nodes of one cluster; none without a token."""

    def __init__(self, token: TokenSource | None, trusted: Sequence[Origin], *, environment: bool = True) -> None:
        """Create them; `trusted` are the nodes that the caller named. Without `token`, the variables KEELMQ_TOKEN and
        KEELMQ_TOKEN_FILE are looked at, unless `environment` is False. Raises InvalidRequest when the token is not one.
        """
        self._source = _from_environment() if token is None and environment else token
        if isinstance(self._source, str):
            _checked(self._source, "token")
        elif self._source is not None:
            check_plain_function("token", self._source)
        self._trusted = frozenset(trusted)

    def header(self, node: Origin) -> str:
        """Return the header line for a request to `node`; empty when there is no token, or none for this node.

        Raises InvalidRequest when the source has no token.
        """
        if self._source is None or not self._may_know(node):
            return ""
        token = self._source if isinstance(self._source, str) else _checked(self._source(), "token")
        return f"Authorization: Bearer {token}\r\n"

    def why_none(self, node: Origin) -> str:
        """Return a sentence that says why a request to `node` shows no token; empty when it shows one."""
        if self._source is None:
            return f"set {VARIABLE} or {FILE_VARIABLE}, or give token="
        if not self._may_know(node):
            return (
                f"the token was not sent to {node.url}, which is not among the servers, not on this machine and has "
                "no TLS; name it among the servers, or use https"
            )
        return ""

    def _may_know(self, node: Origin) -> bool:
        return node.secure or node in self._trusted or is_loopback(node.host)


def _from_environment() -> TokenSource | None:
    token, file = os.environ.get(VARIABLE), os.environ.get(FILE_VARIABLE)
    if token and file:
        raise InvalidRequest("invalid_request", f"{VARIABLE} and {FILE_VARIABLE}: give one of them")
    return token or (TokenFile(file) if file else None)


def _checked(token: object, where: str) -> str:
    """Return a token that may stand in a header line. Raises InvalidRequest, without the token in its text."""
    if token is not None and not isinstance(token, str):
        raise InvalidRequest("invalid_request", f"{where}: a token is a str, not {type(token).__name__}")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("invalid_request", f"{where}: no token, which is a word of printable ASCII characters")
    return token


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host, which is an IP address or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
