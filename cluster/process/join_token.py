"""Uses up the join token of a new node: it is shown once, and the peer secret that is answered is kept in a file."""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from cluster.process.addresses import parse_url
from cluster.process.config import NodeConfig
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.trust import is_loopback

TIMEOUT_S: Final = 60
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
    peer_secret_file. Raises StartupError, which says whether another token is needed.
    """
    file = config.peer_secret_file
    if file is not None and Path(file).exists():
        raise _failed(f"the peer secret would be written to {file}, which exists: remove it, or join_token_file")
    body = msgspec.json.encode({"node_id": config.node_id})
    address = f"{parse_url(url, 'join')}/v1/cluster/join"
    for _ in range(REDIRECTS_MAX + 1):
        request = urllib.request.Request(address, data=body, method="POST")  # noqa: S310 - http(s) only, see below
        request.add_unredirected_header("Authorization", f"Bearer {token}")
        request.add_unredirected_header("Content-Type", "application/json")
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                answer = msgspec.json.decode(response.read(ANSWER_BYTES_MAX), type=_Answer)
        except urllib.error.HTTPError as error:
            address = _elsewhere(address, error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(f"{address} has not answered: {error}; {ANOTHER}") from None
        else:
            if file is not None and answer.peer_secret is not None:
                _write(file, answer.peer_secret)
            return
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


def _write(file: str, secret: str) -> None:
    """Write the secret to a new file that only its owner reads, durably. Raises StartupError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secret.encode("ascii", "surrogateescape") + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise _failed(f"peer_secret_file {file} cannot be written: {error.strerror}; {ANOTHER}") from None


def _failed(reason: str) -> StartupError:
    return StartupError(ExitCode.BAD_CONFIG, f"join_token_file: {reason}")
