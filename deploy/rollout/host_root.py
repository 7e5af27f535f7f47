"""The directory of one node on its host: whose it is, what runs there, who may change it now, and files in it.

Its source is sent with each call, as that of host_agent.py is.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import select
import sys
import time
from pathlib import Path

TYPE_CHECKING = False
"""Constant of `typing`, whose import would take longer than most calls."""
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MARK = ".keelmq-deploy"
"""File that says that the tool made the directory which it is in."""
POLL_S = 0.05
BUSY = "busy"
"""File of the run of the tool that works on the cluster now, which has a lock on it: who it is, and its name."""
BUSY_S_MAX = 5.0
"""Time that a run which was killed has to be gone from its hosts, in seconds."""


class AgentError(Exception):
    """The request cannot be carried out; the text says why."""


def running(root: Path) -> tuple[int, list[str]] | None:
    """Return process id and command line of the node whose configuration is below `root`, whoever started it: those of
    its supervisor if it has one.
    """
    begin = os.fsencode(root / "etc" / "keelmqd-")
    supervised = None
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue  # anybody may have any command line
            parts = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            continue  # it has ended
        found = int(entry.name), [os.fsdecode(part) for part in parts]
        if len(parts) >= 2 and parts[-2] == b"--config" and parts[-1].startswith(begin):
            return found
        if parts and parts[-1].startswith(b"--config=" + begin):
            supervised = found  # its supervisor may have been killed
    return supervised


@contextlib.contextmanager
def alone(root: Path, run: dict[str, Any] | None = None) -> Iterator[None]:
    """Keep other calls for the same root out within the block: also that of a tool that was killed, which goes on here.
    Waits for their end. A root that does not exist is nobody's. Raises AgentError when `run` may not change it then.
    """
    while root.is_dir():
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not root.is_dir() or not os.path.samestat(os.fstat(handle), root.stat()):
                continue  # it was removed meanwhile
            require_run(root, run)
            yield
            return
        finally:
            os.close(handle)
    require_run(root, run)
    yield


def require_run(root: Path, run: dict[str, Any] | None) -> None:
    """Raise AgentError unless the run of the tool may change the root: it holds it still, or nobody does and this run
    never has, as it found no root or no way here. None is a call outside of any run.
    """
    if run is None:
        return
    who, name = _holder(root)
    if name == run["name"]:
        return
    if run["is_held"]:
        other = f"{who} works on this cluster now" if who else "another one may have begun"
        raise AgentError(f"this run no longer holds the host, and {other}: nothing was changed; run the command again")
    if who:
        raise AgentError(f"another keelmq-deploy works on this cluster: {who}; wait for its end")


def _holder(root: Path) -> tuple[str, str]:
    """Return who holds the root, and the name of that run; both empty when nobody does."""
    try:
        with open(root / BUSY) as file:
            if _is_locked(file.fileno(), fcntl.LOCK_SH):
                return "", ""
            who, _, name = file.read().partition("\n")
            return who or "unknown", name.strip()
    except FileNotFoundError:
        return "", ""


def hold(root: Path, owner: str, who: str, silence_s: float, claims: bool, name: str = "") -> dict[str, Any]:
    """Keep other runs of the tool out until standard input ends, or nothing comes for `silence_s` seconds: the machine
    of the tool may be gone. Says so in a line of its own, or answers who works here. A root that the tool has not made
    is held by nobody, unless this run makes it (`claims`). Calls of the run `name` alone change the root meanwhile.
    """
    while is_ours(root, owner):
        if not (root / MARK).exists():
            if not claims:
                return {}
            put_bytes(root / MARK, owner.encode())
        with contextlib.suppress(FileNotFoundError):  # the root was removed meanwhile
            if (answer := _hold_as_it_is(root, who, silence_s, name)) is not None:
                return answer
    return {}


def _hold_as_it_is(root: Path, who: str, silence_s: float, name: str) -> dict[str, Any] | None:
    """Return the answer to `hold`, None when the root was removed before it was held."""
    with open(root / BUSY, "a+", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        deadline = time.monotonic() + BUSY_S_MAX
        while not _is_locked(file.fileno()):
            if time.monotonic() > deadline:
                file.seek(0)
                other, _, its_name = file.read().partition("\n")
                is_own = name and its_name.strip() == name  # by a connection that was lost
                return {} if is_own else {"busy": other.strip() or "unknown"}
            time.sleep(POLL_S)
        file.truncate(0)
        file.write(f"{who}\n{name}\n")
        file.flush()
        if not _waited_for_calls(root, silence_s):
            return {}
        if not _is_still(root / BUSY, file.fileno()):
            return None
        print(json.dumps({"held": True}), flush=True)
        while select.select([0], [], [], silence_s)[0] and os.read(0, 4096):
            pass
    return {}


def _waited_for_calls(root: Path, silence_s: float) -> bool:
    """Wait for the end of calls that were let in before, of a run that is gone. Return False when the run that waits
    is gone itself: standard input has ended, or nothing came for `silence_s` seconds.
    """
    heard_s = time.monotonic()
    while True:
        try:
            handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return True
        try:
            if _is_locked(handle):
                return True
        finally:
            os.close(handle)
        if select.select([0], [], [], POLL_S)[0]:
            if not os.read(0, 4096):
                return False
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > silence_s:
            return False


def _is_still(path: Path, handle: int) -> bool:
    """Return whether the path names the file that is open."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _is_locked(handle: int, how: int = fcntl.LOCK_EX) -> bool:
    """Return whether the file is locked by this call now."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_new(path: Path, name: str) -> bool:
    """Return whether a call was killed while it stored a file of this name there."""
    return path.name.startswith(f"{name}.") and path.name.endswith(".new")


def is_ours(root: Path, owner: str) -> bool:
    """Return whether the tool made the directory for this node of this cluster, or may make it: it is missing or
    empty, but for what a removal that was killed has left. `owner` is what the mark says.
    """
    mark = root / MARK
    if mark.exists():
        return mark.read_text() == owner
    return not root.exists() or all(path.name == BUSY or is_new(path, MARK) for path in root.iterdir())


def require_ours(root: Path, owner: str) -> None:
    """Raise AgentError when something else, or another node's data, is in the directory."""
    if not is_ours(root, owner):
        raise AgentError(f"{root} is not marked as that of {owner.strip()}: nothing was changed")


def own_environment() -> dict[str, str]:
    """Return the environment of a node: without what is meant for this program, or would be options of keelmqd."""
    foreign = ("KEELMQ_", "PYTHON", "NOTIFY_SOCKET", "WATCHDOG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def free_bytes(path: Path) -> int:
    """Return what an ordinary user may still write there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def has_data(root: Path) -> bool:
    return (root / "data").is_dir() and any((root / "data").iterdir())


def require_stopped(root: Path) -> None:
    if running(root) is not None:
        raise AgentError("the node still runs")


def put(path: Path, sha256: str, mode: int, run: dict[str, Any] | None = None) -> dict[str, Any]:
    """Store standard input as the file, durable, whole or not at all: not when the run has lost the host until all is
    here.
    """
    if run is not None:
        require_run(Path(run["root"]), run)
    _store(path, sys.stdin.buffer, sha256, mode, run)
    return {}


def put_bytes(path: Path, content: bytes) -> None:
    """Store the file for its owner alone, whole or not at all."""
    import hashlib

    _store(path, io.BytesIO(content), hashlib.sha256(content).hexdigest(), 0o600)


def _store(path: Path, source: BinaryIO, sha256: str, mode: int, run: dict[str, Any] | None = None) -> None:
    import hashlib

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in path.parent.glob(f"{path.name}.*.new"):
        with contextlib.suppress(OSError), left.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody writes it any more
            left.unlink()
    new = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
    handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    digest = hashlib.sha256()
    with open(handle, "wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        os.fchmod(handle, mode)
        while block := source.read(1 << 20):
            digest.update(block)
            stream.write(block)
        stream.flush()
        os.fsync(handle)
        if digest.hexdigest() != sha256:
            os.unlink(new)
            raise AgentError(f"{path}: the file did not arrive whole")
        try:
            with (
                contextlib.nullcontext() if run is None else alone(Path(run["root"]), run),
                opened_directory(path.parent) as directory,
            ):
                os.rename(new, path)
                os.fsync(directory)
        except AgentError:
            os.unlink(new)
            raise


@contextlib.contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Open the directory, whose sync makes a rename in it durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def is_being_stored(path: Path) -> bool:
    """Return whether a call writes the new file now."""
    try:
        with path.open("rb") as stream:
            return not _is_locked(stream.fileno())
    except OSError:
        return False


def digest(path: Path) -> dict[str, Any]:
    """Return the SHA-256 of the file, empty without one."""
    import hashlib

    if not path.is_file():
        return {"sha256": ""}
    with path.open("rb") as stream:
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
