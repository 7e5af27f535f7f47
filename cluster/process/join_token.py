"""Uses up the join token of a new node: it is shown once, and the peer secret that is answered is kept in a file."""

import contextlib
import errno
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from cluster.process.addresses import is_loopback, parse_url
from cluster.process.config import NodeConfig
from cluster.process.data_directory import sync_directory
from cluster.process.exit_codes import ExitCode, StartupError

TIMEOUT_S: Final = 60
FILE_MODE: Final = 0o600
ANSWER_BYTES_MAX: Final = 64 * 1024
REDIRECTS_MAX: Final = 3
TEMPORARY_REDIRECT: Final = 307
ANOTHER: Final = "make another one with `keelmq cluster join-token`, since this one may be used up"


class _Answer(msgspec.Struct):
    peer_secret: str | None = None


class _Problem(msgspec.Struct):
    detail: str = ""


def use_up(config: NodeConfig, url: str, token: str, opener: urllib.request.OpenerDirector) -> None:
    """Show the join token to the leader, by way of the node at `url`, and write the peer secret that is answered to
    peer_secret_file, which is made before. Raises StartupError, which says whether another token is needed.
    """
    file = config.peer_secret_file
    if file is None:
        _answered(config, url, token, opener)
        return
    with _new_file(file) as descriptor:
        secret = _answered(config, url, token, opener)
        if secret is not None:
            _write(descriptor, file, secret)


def _answered(config: NodeConfig, url: str, token: str, opener: urllib.request.OpenerDirector) -> str | None:
    """Use up the token and return the peer secret; None when the nodes have none. Raises StartupError."""
    body = msgspec.json.encode({"node_id": config.node_id})
    address = f"{parse_url(url, 'join')}/v1/cluster/join"
    for _ in range(REDIRECTS_MAX + 1):
        request = urllib.request.Request(address, data=body, method="POST")  # noqa: S310 - http(s) only, see below
        request.add_unredirected_header("Authorization", f"Bearer {token}")
        request.add_unredirected_header("Content-Type", "application/json")
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                return msgspec.json.decode(response.read(ANSWER_BYTES_MAX), type=_Answer).peer_secret
        except urllib.error.HTTPError as error:
            address = _elsewhere(address, error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(f"{address} has not answered: {error}; {ANOTHER}") from None
    raise _failed(f"{url} names no node that leads; start this node again")


def _elsewhere(address: str, error: urllib.error.HTTPError) -> str:
    """Return where the leader is. Raises StartupError when the answer is no redirect to a node that may see the token:
    one with TLS, or on this machine.
    """
    location = error.headers.get("Location", "") if error.code == TEMPORARY_REDIRECT else ""
    parts = urlsplit(location)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return location
    try:
        detail = msgspec.json.decode(error.read(ANSWER_BYTES_MAX), type=_Problem).detail
    except (OSError, ValueError):
        detail = location
    raise _failed(f"{address} answers {error.code}: {detail}")


@contextlib.contextmanager
def _new_file(file: str) -> Iterator[int]:
    """Make the file, which only its owner reads, and yield its descriptor. It is removed again after an error, and when
    nothing was written. Raises StartupError when it exists or cannot be made.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        reason = f"the peer secret would be written to {file}, which exists: remove it, or join_token_file"
        raise _failed(reason) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise _failed(f"peer_secret_file cannot be made: {error}; the token was not shown, and is still good") from None
    is_kept = False
    try:
        yield descriptor
        is_kept = os.fstat(descriptor).st_size > 0
    finally:
        os.close(descriptor)
        if not is_kept:
            os.unlink(file)


def _write(descriptor: int, file: str, secret: str) -> None:
    """Write the secret durably. Raises StartupError."""
    line = secret.encode() + b"\n"
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        sync_directory(Path(file).parent)
    except OSError as error:
        raise _failed(f"peer_secret_file {file} cannot be written: {error.strerror}; {ANOTHER}") from None


def _failed(reason: str) -> StartupError:
    return StartupError(ExitCode.BAD_CONFIG, f"join_token_file: {reason}")
