"""Agent of the deploying tool on a host: one request in, one answer out, both JSON. Its source is sent with each call,
so the host needs nothing but Python >= 3.11.4; of this project it imports other host_ modules alone, which are sent,
too. What most calls do not need is imported late: imports take most of the time of a call.

The first line of standard input is the request; what follows is the content of a file. Everything may be repeated. The
running process itself says what runs (`/proc`), and no file that could be wrong does.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

from deploy.rollout.host_data import is_restored, note_restore, recover, restore, restore_note, set_aside
from deploy.rollout.host_releases import install, release_at, rollback, stay
from deploy.rollout.host_root import (
    BUSY,
    MARK,
    POLL_S,
    AgentError,
    alone,
    digest,
    free_bytes,
    has_data,
    hold,
    is_ours,
    own_environment,
    put,
    put_bytes,
    require_ours,
    require_run,
    require_stopped,
    running,
)

TYPE_CHECKING = False
"""Constant of `typing`, whose import would take longer than most calls."""
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

CONNECT_TIMEOUT_S = 3.0
LOG = "keelmqd.log"
LOG_BYTES_MAX = 1 << 20
DRAINED = "drained"
"""File that says that the node was stopped on purpose, and is not to be started until `undrain`."""


def facts(root: Path, program: str, owner: str) -> dict[str, Any]:
    """Return what is on the host; creates nothing."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    found = running(root)
    current = root / "current"
    wanted = program or (str(current.readlink() / "bin" / "keelmqd") if current.is_symlink() else "")
    return {
        "python": list(sys.version_info[:3]),
        "time_ms": time.time_ns() // 1_000_000,
        "free_bytes": free_bytes(existing),
        "writable": os.access(existing, os.W_OK | os.X_OK) and existing.is_dir(),
        "program": wanted if wanted and os.access(wanted, os.X_OK) else "",
        "has_data": has_data(root),
        "has_root": root.exists(),
        "is_ours": is_ours(root, owner),
        "release": release_at(current),
        "release_before": release_at(root / "previous"),
        "is_drained": (root / DRAINED).exists(),
        "restore": restore_note(root),
        "is_restored": is_restored(root),
        "pid": found[0] if found else 0,
        "command": found[1] if found else [],
    }


def disk_defect(root: Path) -> dict[str, Any]:
    """Return why a file in the directory cannot be made durable, empty when it can. The file never has a name."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return {"reason": ""}
    try:
        file = os.open(existing, flag | os.O_RDWR, 0o600)
    except OSError:
        return {"reason": ""}  # not every file system has files without names
    try:
        os.write(file, b"keelmq")
        os.fdatasync(file)
    except OSError as error:
        return {"reason": str(error)}
    finally:
        os.close(file)
    return {"reason": ""}


def listen(ports: list[int]) -> dict[str, Any]:
    """Accept connections at the ports of all addresses until standard input ends. Says so in a line of its own."""
    sockets = []
    try:
        for port in ports:
            try:
                sockets.append(_listening(port))
            except OSError as error:
                raise AgentError(f"port {port} cannot be used: {error.strerror or error}") from None
        print(json.dumps({"listening": ports}), flush=True)
        sys.stdin.buffer.read()
    finally:
        for each in sockets:
            each.close()
    return {}


def _listening(port: int) -> socket.socket:
    import socket

    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def reach(targets: list[list[Any]]) -> dict[str, Any]:
    """Connect to each host and port; return those that refuse, with the reason."""
    import socket
    from concurrent.futures import ThreadPoolExecutor

    def attempt(target: list[Any]) -> str:
        try:
            socket.create_connection((target[0], target[1]), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        return ""

    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        reasons = list(pool.map(attempt, targets))
    return {"refused": [[*target, reason] for target, reason in zip(targets, reasons, strict=True) if reason]}


def claim(root: Path, owner: str) -> dict[str, Any]:
    """Mark the root as one of the tool, for the node."""
    if not is_ours(root, owner):
        raise AgentError(f"{root} is in use by something else; choose another root or empty it")
    put_bytes(root / MARK, owner.encode())
    return {}


def install_sent(
    root: Path, owner: str, name: str, sha256: str, program: str, run: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Claim the root, store the bundle that is sent, install it as the release of this name, and return the facts: all
    in one call, as in `prepare`.
    """
    require_run(root, run)
    claim(root, owner)
    archive = root / "releases" / f"{name}.tar.gz"
    put(archive, sha256, 0o600)
    with alone(root, run):
        if not (root / MARK).exists():
            raise AgentError(f"{root} was removed meanwhile")
        install(root, archive, name, owner)
    return facts(root, program, owner)


def prepare(
    root: Path,
    owner: str,
    files: dict[str, str],
    program: str,
    config: str,
    supervised: bool = False,
    run: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Claim the root, store the files (Base64, by name below it), and have keelmqd check the configuration among them:
    all in one call, because each one over ssh costs the time of a handshake.
    """
    import base64

    require_run(root, run)
    claim(root, owner)
    with alone(root, run):
        if not (root / MARK).exists():
            raise AgentError(f"{root} was removed meanwhile")
        require_ours(root, owner)
        for name, content in files.items():
            put_bytes(root / name, base64.b64decode(content))
        return check(program, str(root / config), supervised)


def check(program: str, config: str, supervised: bool = False) -> dict[str, Any]:
    """Have keelmqd check the configuration, and whether it can supervise a node if it has to."""
    import subprocess

    command = [program, *(["supervise"] if supervised else []), "--config", config, "--check-config"]
    done = subprocess.run(command, capture_output=True, text=True, env=own_environment())  # noqa: S603
    if done.returncode != 0:
        raise AgentError(f"keelmqd --check-config: {(done.stderr.strip() or done.returncode)}"[-2000:])
    return {}


def start(root: Path, program: str, config: str, owner: str, supervised: bool = False) -> dict[str, Any]:
    """Start the node unless it runs, with a supervisor if it is to have one."""
    import subprocess

    require_ours(root, owner)
    if running(root) is None:
        path = root / LOG
        supervisor = ["supervise", "--output", str(path)] if supervised else []
        # Its content is for whoever runs the node; an earlier version has made it for everybody.
        with open(path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            os.fchmod(log.fileno(), 0o600)
            subprocess.Popen(  # noqa: S603
                [program, *supervisor, "--config", config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=root,
                env=own_environment(),
                start_new_session=True,
                umask=0o077,
            )
    return {}


def stop(root: Path, timeout_s: float, owner: str) -> dict[str, Any]:
    """End the node with SIGTERM, and wait until it has ended."""
    import signal

    require_ours(root, owner)
    found = running(root)
    if found is None:
        return {}
    os.kill(found[0], signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while (now := running(root)) is not None and now[0] == found[0]:
        if time.monotonic() > deadline:
            raise AgentError(f"process {found[0]} has not ended within {timeout_s:.0f} s of SIGTERM")
        time.sleep(POLL_S)
    return {}


def logs(root: Path, lines: int) -> dict[str, Any]:
    """Return the last lines of the node's log, which may begin in the file that was put aside."""
    found: list[str] = []
    for path in (root / LOG, root / f"{LOG}.1"):
        if len(found) < lines and path.exists():
            with path.open("rb") as stream:
                stream.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
                found = [*stream.read().decode(errors="replace").splitlines(), *found]
    return {"lines": found[-lines:]}


def drain(root: Path, owner: str, drained: bool) -> dict[str, Any]:
    """Note on the host that the node is out of service, or that it is back."""
    require_ours(root, owner)
    if drained:
        (root / DRAINED).touch()
    else:
        (root / DRAINED).unlink(missing_ok=True)
    return {}


def version(program: str) -> dict[str, Any]:
    """Return the version that keelmqd prints, empty when it prints none."""
    import subprocess

    done = subprocess.run([program, "--version"], capture_output=True, text=True, env=own_environment())  # noqa: S603
    return {"version": done.stdout.strip() if done.returncode == 0 else ""}


def hang_up(root: Path, owner: str) -> dict[str, Any]:
    """Have the node read its certificates and log level again."""
    import signal

    require_ours(root, owner)
    found = running(root)
    if found is not None:
        os.kill(found[0], signal.SIGHUP)
    return {}


def destroy(root: Path, owner: str) -> dict[str, Any]:
    """Remove everything below `root`, the mark last, so that a repetition finds it, and before it what keeps other runs
    out.
    """
    import errno
    import shutil

    require_ours(root, owner)
    require_stopped(root)
    if not root.exists():
        return {}
    last = {BUSY: 1, MARK: 2}
    for path in sorted(root.iterdir(), key=lambda path: last.get(path.name, 0)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    while True:
        try:
            root.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or [path.name for path in root.iterdir()] != [BUSY]:
                raise
            (root / BUSY).unlink()  # of a run that waits for the end of this call
        else:
            return {}


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "facts": facts,
    "put": put,
    "claim": claim,
    "prepare": prepare,
    "start": start,
    "stop": stop,
    "logs": logs,
    "install_sent": install_sent,
    "rollback": rollback,
    "stay": stay,
    "drain": drain,
    "hang_up": hang_up,
    "disk_defect": disk_defect,
    "listen": listen,
    "hold": hold,
    "reach": reach,
    "version": version,
    "digest": digest,
    "note_restore": note_restore,
    "restore": restore,
    "recover": recover,
    "set_aside": set_aside,
    "destroy": destroy,
}
ALONE = (
    *("start", "stop", "rollback", "stay", "drain", "destroy"),
    *("note_restore", "restore", "recover", "set_aside"),
)
"""Actions that change the root, and must not do so twice at a time."""
LONG = ("put", "install_sent", "prepare")
"""Actions that are given the run that calls, and take the hold of the root themselves."""
PATHS = ("root", "path", "archive")


def serve() -> None:
    """Carry out one request after the other until standard input ends, each in a process of its own: what one leaves
    behind is nothing to the next. An empty line asks whether it is there.
    """
    gc.freeze()  # a collection in a fork would write to each page that it shares with this process
    while line := sys.stdin.buffer.readline():
        if line == b"\n":
            print(json.dumps({"there": True}), flush=True)
            continue
        process = os.fork()
        if process == 0:
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
            print(json.dumps(answer_to(json.loads(line))), flush=True)
            return
        _, status = os.waitpid(process, 0)
        if status:
            sys.exit(1)  # it has said why


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    if request["action"] == "serve":
        serve()
    else:
        print(json.dumps(answer_to(request)))


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Carry the request out and return its answer. The `run` of a request that changes the host has the name of the
    run of the tool, the root that it is about, and whether the run holds that.
    """
    try:
        arguments = {name: Path(value) if name in PATHS else value for name, value in request["arguments"].items()}
        action, run = request["action"], request.get("run")
        if action in LONG:
            return ACTIONS[action](**arguments, run=run)
        if action in ALONE:
            with alone(arguments["root"], run):
                return ACTIONS[action](**arguments)
        if run is not None:
            require_run(Path(run["root"]), run)
        return ACTIONS[action](**arguments)
    except (AgentError, OSError, ValueError) as error:
        return {"error": str(error) or repr(error)}


if __name__ == "__main__":
    main()
