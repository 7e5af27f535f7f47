"""The node's side of sd_notify: its environment, and the messages that it sends."""

import os
import socket
from pathlib import Path

import pytest

from cluster.service_manager.notify_socket import STATUS_CHARACTERS_MAX, NotifySocket


@pytest.mark.parametrize(
    ("variables", "watchdog_us"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "5"}, 5),
        ({"WATCHDOG_USEC": "5", "WATCHDOG_PID": str(os.getpid())}, 5),
        ({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "0"}, 0),
        ({"WATCHDOG_USEC": "-5"}, 0),
        ({"WATCHDOG_USEC": "٥"}, 0),
        ({"WATCHDOG_USEC": "9" * 5_000}, 0),
    ],
)
def test_signs_of_life_are_sent_only_where_this_process_is_asked(variables: dict[str, str], watchdog_us: int) -> None:
    assert NotifySocket.from_environment({"NOTIFY_SOCKET": "/run/notify", **variables}).watchdog_us == watchdog_us
    assert NotifySocket.from_environment(variables).watchdog_us == 0


def test_a_status_is_one_line_of_limited_length(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.setblocking(False)
        sender = NotifySocket(path)
        sender.status("a\nREADY=1\x1b" + "é" * 1_000)
        heard = manager.recv(65_536).decode()
        assert heard == ("STATUS=a READY=1 " + "é" * 1_000)[: STATUS_CHARACTERS_MAX + len("STATUS=")]
        sender.alive()  # nobody asked
        with pytest.raises(BlockingIOError):
            manager.recv(65_536)
        sender.close()


def test_a_manager_that_does_not_listen_never_holds_the_node_up(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        sender = NotifySocket(path, watchdog_us=1_000_000)
        for _ in range(5_000):  # more than the socket's queue takes
            sender.alive()
        sender.close()
