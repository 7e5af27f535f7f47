#!/usr/bin/env python3
"""Stands in for `systemctl` on a host without systemd: runs what the unit file says, as its user, and waits until the
service says that it is ready. It knows what a playbook needs, and nothing of restarts, limits and hardening.
"""

import configparser
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

UNITS: Final = Path("/etc/systemd/system")
STATES: Final = Path("/var/lib/units")
POLL_S: Final = 0.05
NOT_ACTIVE: Final = 3


class Unit:
    """One service, `NAME@INSTANCE`."""

    def __init__(self, text: str) -> None:
        self.name = text.removesuffix(".service")
        template, _, self._instance = self.name.partition("@")
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        self.is_loaded = bool(parser.read(UNITS / f"{template}@.service"))
        self._service = dict(parser["Service"]) if self.is_loaded else {}
        STATES.mkdir(exist_ok=True, parents=True)

    @property
    def enabled(self) -> Path:
        return STATES / f"{self.name}.enabled"

    def state(self) -> tuple[str, int]:
        """Return what systemd calls ActiveState, and the main process."""
        try:
            state, pid = (STATES / self.name).read_text().split()
        except (OSError, ValueError):
            return "inactive", 0
        return state, int(pid)

    def stop(self) -> None:
        state, pid = self.state()
        if state in ("active", "activating"):
            os.kill(pid, signal.SIGTERM)
            while self.state()[0] in ("active", "activating"):
                time.sleep(POLL_S)

    def start(self, *, blocks: bool) -> int:
        """Begin the service; with `blocks`, return once it is ready or has ended."""
        socket_path = STATES / f"{self.name}.socket"
        socket_path.unlink(missing_ok=True)
        notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notified.bind(str(socket_path))
        socket_path.chmod(0o666)
        process = self._begin(socket_path)
        self._note("activating", process.pid)
        if os.fork() == 0:
            os.setsid()
            for stream in (0, 1, 2):  # whoever asked waits for the end of its output
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            os._exit(self._watch(process.pid, notified))
        while blocks and (state := self.state()[0]) != "active":
            if state != "activating":
                return 1
            time.sleep(POLL_S)
        return 0

    def _begin(self, socket_path: Path) -> "subprocess.Popen[bytes]":
        user, group = self._service["User"], self._service["Group"]
        directory = Path("/var/lib") / self._expanded("StateDirectory")
        directory.mkdir(parents=True, exist_ok=True, mode=int(self._service["StateDirectoryMode"], 8))
        shutil.chown(directory, user, group)
        with (STATES / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                shlex.split(self._expanded("ExecStart")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._expanded("WorkingDirectory"),
                env={"PATH": "/usr/bin:/bin", "NOTIFY_SOCKET": str(socket_path)},
                user=user,
                group=group,
                extra_groups=[],
                start_new_session=True,  # the terminal of whoever asked is not its own
                umask=int(self._service["UMask"], 8),
            )

    def _watch(self, pid: int, notified: socket.socket) -> int:
        """Note what the service says until it has ended."""
        ended = os.pidfd_open(pid)
        while ended not in (readable := select.select([ended, notified.fileno()], [], [])[0]):
            if readable and "READY=1" in notified.recv(4096).decode().split("\n"):
                self._note("active", pid)
        self._note("inactive", pid)
        return 0

    def _expanded(self, key: str) -> str:
        return self._service[key].replace("%i", self._instance)

    def _note(self, state: str, pid: int) -> None:
        new = STATES / f"{self.name}.new"
        new.write_text(f"{state} {pid}\n")
        new.rename(STATES / self.name)


def main() -> int:
    verb, *rest = [each for each in sys.argv[1:] if not each.startswith("-")]
    if verb == "daemon-reload":
        return 0
    unit = Unit(rest[0])
    state, pid = unit.state()
    match verb:
        case "show":
            loaded = "loaded" if unit.is_loaded else "not-found"
            print(f"Id={unit.name}.service\nLoadState={loaded}\nActiveState={state}\nMainPID={pid}")
        case "is-active":
            print(state)
            return 0 if state == "active" else NOT_ACTIVE
        case "is-enabled":
            print("enabled" if unit.enabled.exists() else "disabled")
            return 0 if unit.enabled.exists() else 1
        case "enable":
            unit.enabled.touch()
        case "restart" | "start":
            unit.stop()
            return unit.start(blocks="--no-block" not in sys.argv)
        case "stop":
            unit.stop()
        case _:
            print(f"unknown verb {verb}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
