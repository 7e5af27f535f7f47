"""What this machine allows: namespaces of our own, firewall rules, system call injection.

With the rights for it the run moves into a network and a mount namespace that nobody else sees. Everything it makes
there (network namespaces of the nodes, bridge, addresses, rules, mounts) goes away with its processes, even when it
is killed: there is nothing to clean up, and two runs cannot meet.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

ISOLATED_VARIABLE: Final = "CHAOS_ISOLATED"
"""1 in a run that has moved into namespaces; `no: <reason>` keeps one where it is."""
_UNSHARE: Final = ("unshare", "--mount", "--net", "--propagation", "private")
_UNSHARE_UNPRIVILEGED: Final = ("unshare", "--user", "--map-root-user", *_UNSHARE[1:])
_PTRACE_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_PROBE_TIMEOUT_S: Final = 20


class Machine(msgspec.Struct, frozen=True):
    """What works here. Each of these is None when it does, or the reason why not."""

    no_network: str | None
    no_mounts: str | None
    no_injection: str | None
    no_relay: str | None
    """Frames of an interface, raw."""

    @property
    def isolated(self) -> bool:
        return self.no_network is None


def enter_isolation(arguments: Sequence[str], module: str = "tests.chaos") -> str | None:
    """Start `module`, this program, again inside namespaces of its own (does not return), or say why that cannot be."""
    said = os.environ.get(ISOLATED_VARIABLE)
    if said:
        return said if said.startswith("no") else None
    missing = [tool for tool in ("unshare", "ip", "nsenter", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found (Debian: iproute2, util-linux)"
    reason = ""
    for unshare in (_UNSHARE, _UNSHARE_UNPRIVILEGED):
        reason = _refusal([*unshare, "ip", "link", "set", "lo", "up"])
        if not reason:
            environment = {**os.environ, ISOLATED_VARIABLE: "1"}
            command = [*unshare, sys.executable, "-m", module, *arguments]
            os.execvpe(command[0], command, environment)
    return f"no network namespaces: {reason}"


def look_around(not_isolated: str | None) -> Machine:
    """To be called after `enter_isolation`, with its answer."""
    no_network = no_mounts = not_isolated
    if not_isolated is None and shutil.which("nft") is None:
        no_network = "nft not found (Debian: nftables)"
    return Machine(no_network, no_mounts, _no_injection(), no_network or _no_relay())


def _no_relay() -> str | None:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except OSError as error:
        return f"no raw frames: {error.strerror}"
    return None


def _no_injection() -> str | None:
    if shutil.which("strace") is None:
        return "strace not found"
    if os.geteuid() != 0 and _PTRACE_SCOPE.exists() and _PTRACE_SCOPE.read_text().strip() != "0":
        return "this user may not trace processes that run (kernel.yama.ptrace_scope)"
    probe = subprocess.Popen(["sleep", str(_PROBE_TIMEOUT_S)])
    try:
        command = ["timeout", "-s", "INT", "0.3", "strace", "-q", "-f", "-p", str(probe.pid)]
        command += ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
        refused = [line for line in found.stderr.splitlines() if "not permitted" in line or "invalid" in line]
        return f"strace: {refused[0]}" if refused else None
    finally:
        probe.kill()
        probe.wait()


def _refusal(command: Sequence[str]) -> str:
    """Why `command` does not work; empty when it does."""
    found = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    return "" if found.returncode == 0 else (found.stderr.strip().splitlines() or ["failed"])[-1]
