"""Agent of the deploying tool on a host: one request in, one answer out, both JSON. Its source is sent with each call,
so the host needs nothing but Python >= 3.11.4; it imports nothing of this project.

The first line of standard input is the request; what follows is the content of a file. Everything may be repeated. The
running process itself says what runs (`/proc`), and no file that could be wrong does.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

POLL_S = 0.05
CONNECT_TIMEOUT_S = 3.0
LOG_BYTES_MAX = 1 << 20
MARK = ".keelmq-deploy"
"""File that says that the tool made the directory which it is in."""
DRAINED = "drained"
"""File that says that the node was stopped on purpose, and is not to be started until `undrain`."""


class AgentError(Exception):
    """The request cannot be carried out; the text says why."""


def running(root: Path) -> tuple[int, list[str]] | None:
    """Return process id and command line of the node whose configuration is below `root`, whoever started it."""
    begin = os.fsencode(root / "etc" / "keelmqd-")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue  # anybody may have any command line
            parts = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            continue  # it has ended
        if len(parts) >= 2 and parts[-2] == b"--config" and parts[-1].startswith(begin):
            return int(entry.name), [os.fsdecode(part) for part in parts]
    return None


def is_ours(root: Path, owner: str) -> bool:
    """Return whether the tool made the directory for this node of this cluster, or may make it: it is missing or
    empty. `owner` is what the mark says.
    """
    mark = root / MARK
    if mark.exists():
        return mark.read_text() == owner
    return not root.exists() or all(path.name == f"{MARK}.new" for path in root.iterdir())


def require_ours(root: Path, owner: str) -> None:
    """Raise AgentError when something else, or another node's data, is in the directory."""
    if not is_ours(root, owner):
        raise AgentError(f"{root} is not marked as that of {owner.strip()}: nothing was changed")


def own_environment() -> dict[str, str]:
    """Return the environment of a node: without what is meant for this program, or would be options of keelmqd."""
    foreign = ("KEELMQ_", "PYTHON", "NOTIFY_SOCKET", "WATCHDOG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def facts(root: Path, program: str, owner: str) -> dict[str, Any]:
    """Return what is on the host; creates nothing."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    found = running(root)
    current = root / "current"
    wanted = program or (str(current.readlink() / "bin" / "keelmqd") if current.is_symlink() else "")
    return {
        "python": list(sys.version_info[:3]),
        "time_ms": time.time_ns() // 1_000_000,
        "free_bytes": shutil.disk_usage(existing).free,
        "writable": os.access(existing, os.W_OK | os.X_OK) and existing.is_dir(),
        "program": wanted if wanted and os.access(wanted, os.X_OK) else "",
        "has_data": (root / "data").is_dir() and any((root / "data").iterdir()),
        "has_root": root.exists(),
        "is_ours": is_ours(root, owner),
        "has_previous": (root / "previous").is_symlink(),
        "is_drained": (root / DRAINED).exists(),
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
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def reach(targets: list[list[Any]]) -> dict[str, Any]:
    """Connect to each host and port; return those that refuse, with the reason."""

    def attempt(target: list[Any]) -> str:
        try:
            socket.create_connection((target[0], target[1]), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        return ""

    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        reasons = list(pool.map(attempt, targets))
    return {"refused": [[*target, reason] for target, reason in zip(targets, reasons, strict=True) if reason]}


def put(path: Path, sha256: str, mode: int) -> dict[str, Any]:
    """Store standard input as the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    digest = hashlib.sha256()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        while block := sys.stdin.buffer.read(1 << 20):
            digest.update(block)
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
    if digest.hexdigest() != sha256:
        new.unlink()
        raise AgentError(f"{path}: the file did not arrive whole")
    new.rename(path)
    return {}


def check(program: str, config: str) -> dict[str, Any]:
    """Have keelmqd check the configuration."""
    command = [program, "--config", config, "--check-config"]
    done = subprocess.run(command, capture_output=True, text=True, env=own_environment())  # noqa: S603
    if done.returncode != 0:
        raise AgentError((done.stderr.strip() or f"{program} ended with {done.returncode}")[-2000:])
    return {}


def start(root: Path, program: str, config: str, owner: str) -> dict[str, Any]:
    """Start the node unless it runs."""
    require_ours(root, owner)
    if running(root) is None:
        with (root / "keelmqd.log").open("ab") as log:
            subprocess.Popen(  # noqa: S603
                [program, "--config", config],
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
    """Return the last lines of the node's log."""
    path = root / "keelmqd.log"
    if not path.exists():
        return {"lines": []}
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return {"lines": stream.read().decode(errors="replace").splitlines()[-lines:]}


def install(root: Path, archive: Path, name: str, owner: str) -> dict[str, Any]:
    """Unpack the bundle, have it install itself into `releases/NAME`, and make it the current release."""
    require_ours(root, owner)
    release = root / "releases" / name
    if not (release / "complete").exists():
        unpacked = root / "releases" / f"{name}.unpacked"
        for path in (unpacked, release):
            shutil.rmtree(path, ignore_errors=True)
        unpacked.mkdir(parents=True)
        shutil.unpack_archive(archive, unpacked, "gztar", filter="data")
        (script,) = unpacked.glob("*/install.sh")
        environment = {**own_environment(), "PYTHON": sys.executable}
        command = ["/bin/sh", str(script), str(release)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
        if done.returncode != 0:
            raise AgentError((done.stderr or done.stdout).strip()[-2000:])
        (release / "complete").touch()
        shutil.rmtree(unpacked)
    archive.unlink(missing_ok=True)
    current = root / "current"
    if current.is_symlink() and current.readlink() != release:
        point(root / "previous", current.readlink())
    point(current, release)
    return {}


def point(link: Path, target: Path) -> None:
    """Make `link` point to `target`, at once."""
    new = link.with_name(link.name + ".new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(link)


def rollback(root: Path, owner: str) -> dict[str, Any]:
    """Make the release before the current one again, if there is one. A repetition finds none, and changes nothing."""
    require_ours(root, owner)
    if (root / "previous").is_symlink():
        (root / "previous").rename(root / "current")
    return {}


def drain(root: Path, owner: str, drained: bool) -> dict[str, Any]:
    """Note on the host that the node is out of service, or that it is back."""
    require_ours(root, owner)
    if drained:
        (root / DRAINED).touch()
    else:
        (root / DRAINED).unlink(missing_ok=True)
    return {}


def version(program: str) -> dict[str, Any]:
    """Return what the keelmqd says of its version, empty when it cannot."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, env=own_environment())  # noqa: S603
    return {"version": done.stdout.strip() if done.returncode == 0 else ""}


def hang_up(root: Path, owner: str) -> dict[str, Any]:
    """Have the node read its certificates and log level again."""
    require_ours(root, owner)
    found = running(root)
    if found is not None:
        os.kill(found[0], signal.SIGHUP)
    return {}


def digest(path: Path) -> dict[str, Any]:
    """Return the SHA-256 of the file, empty without one."""
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""}


def destroy(root: Path, owner: str) -> dict[str, Any]:
    """Remove everything below `root`, the mark last, so that a repetition finds it."""
    require_ours(root, owner)
    if running(root) is not None:
        raise AgentError("the node still runs")
    if not root.exists():
        return {}
    for path in sorted(root.iterdir(), key=lambda path: path.name == MARK):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    root.rmdir()
    return {}


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "facts": facts,
    "put": put,
    "check": check,
    "start": start,
    "stop": stop,
    "logs": logs,
    "install": install,
    "rollback": rollback,
    "drain": drain,
    "hang_up": hang_up,
    "disk_defect": disk_defect,
    "listen": listen,
    "reach": reach,
    "version": version,
    "digest": digest,
    "destroy": destroy,
}
PATHS = ("root", "path", "archive")


def main() -> None:
    try:
        request = json.loads(sys.stdin.buffer.readline())
        arguments = {name: Path(value) if name in PATHS else value for name, value in request["arguments"].items()}
        answer = ACTIONS[request["action"]](**arguments)
    except (AgentError, OSError, ValueError) as error:
        answer = {"error": str(error) or repr(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
