"""The datagram socket by which a node tells its service manager of itself (the protocol of sd_notify).

A service manager such as systemd gives the address in NOTIFY_SOCKET: a path, or a name behind `@` in the abstract
namespace. Without that variable nothing is sent.
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final, Self

logger = logging.getLogger(__name__)

STATUS_CHARACTERS_MAX: Final = 200
"""Maximum length of a status text: a line that `systemctl status` shows."""
WATCHDOG_USEC_MAX: Final = 2**63


class NotifySocket:
    """Sends messages to the service manager. It never blocks and never raises: a node serves without its manager.

    `watchdog_us` is the time in microseconds within which the manager expects each sign of life; 0 if it expects none.
    """

    def __init__(self, address: str, watchdog_us: int = 0) -> None:
        self.watchdog_us = watchdog_us if address else 0
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._has_failed = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the socket that NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID describe; one that sends nothing without
        them. An address of another kind, and a time that is no number, are logged and not used.
        """
        address = environment.get("NOTIFY_SOCKET", "")
        if address and address[0] not in "/@":
            logger.warning("NOTIFY_SOCKET %r is neither a path nor an abstract name: it is not used", address)
            address = ""
        return cls(address, _watchdog_us(environment))

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping: handing over")

    def status(self, text: str) -> None:
        """Set the status text. Control characters are replaced, and it is cut after STATUS_CHARACTERS_MAX."""
        line = "".join(character if character.isprintable() else " " for character in text[:STATUS_CHARACTERS_MAX])
        self._send(f"STATUS={line}")

    def alive(self) -> None:
        """Tell that the node is alive, if the manager expects that."""
        if self.watchdog_us:
            self._send("WATCHDOG=1")

    def extend_start(self, time_us: int) -> None:
        """Ask for at least `time_us` from now until the node is ready."""
        self._send(f"EXTEND_TIMEOUT_USEC={time_us}")

    def expect_silence(self, time_us: int) -> None:
        """Ask to wait `time_us` for the next sign of life instead of `watchdog_us`."""
        if self.watchdog_us:
            self._send(f"WATCHDOG_USEC={max(time_us, self.watchdog_us)}", "WATCHDOG=1")

    def end_silence(self) -> None:
        """Go back to `watchdog_us`."""
        if self.watchdog_us:
            self._send(f"WATCHDOG_USEC={self.watchdog_us}", "WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
            self._socket.sendto("\n".join(lines).encode(), self._address)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                logger.warning("the service manager cannot be told %s: %s", lines[0], error)
            self._has_failed = True


def _watchdog_us(environment: Mapping[str, str]) -> int:
    """Return the time that the manager gives this process, or 0: the variables may be meant for another process."""
    text, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not text or pid not in ("", str(os.getpid())):
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) < WATCHDOG_USEC_MAX):
        logger.warning("WATCHDOG_USEC %.40r is not a number of microseconds: no signs of life are sent", text)
        return 0
    return int(text)
