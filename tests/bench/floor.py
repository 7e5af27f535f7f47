"""Measures the best that this machine can do: one fdatasync of 1 KiB and one loopback round trip of 1 KiB.

The nodes of this benchmark share one disk and sync at the same moment, which slows their syncs; on machines of their
own they would not. So the sync is measured alone, which the goal is set against, and also three at once, to tell the
two effects apart.
"""

import os
import socket
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

RECORD_BYTES: Final = 1024
PREALLOCATED_BYTES: Final = 16 << 20
SYNCS: Final = 1000
ROUND_TRIPS: Final = 5000
WARM_UP: Final = 100


class Quantiles(NamedTuple):
    p50_ms: float
    p99_ms: float


class Floor(NamedTuple):
    fdatasync: Quantiles
    fdatasync_three: Quantiles
    """A sync while two others are made at the same moment, each to a file of its own."""
    round_trip: Quantiles

    @property
    def replicated_write_ms(self) -> float:
        """Minimum ms of a write on two disks in turn: leader fdatasync, one round trip, follower fdatasync."""
        return 2 * self.fdatasync.p50_ms + self.round_trip.p50_ms

    @property
    def replicated_write_shared_ms(self) -> float:
        """Minimum ms of the same write where leader and followers sync at once on one disk, as they do here."""
        return 2 * self.fdatasync_three.p50_ms + self.round_trip.p50_ms


def measure(directory: Path) -> Floor:
    return Floor(quantiles(_syncs(directory, 1)), quantiles(_syncs(directory, 3)), round_trip())


def _syncs(directory: Path, writers: int) -> list[float]:
    """Return the seconds of each append of 1 KiB with its sync, for one of `writers` threads that begin each append
    together.
    """
    together = threading.Barrier(writers)
    taken_s: list[float] = []
    threads = [
        threading.Thread(target=_append_and_sync, args=(directory / f"floor{n}.log", together, []))
        for n in range(1, writers)
    ]
    for thread in threads:
        thread.start()
    _append_and_sync(directory / "floor0.log", together, taken_s)
    for thread in threads:
        thread.join()
    return taken_s[WARM_UP:]


def _append_and_sync(path: Path, together: threading.Barrier, taken_s: list[float]) -> None:
    """Append records with a sync each, to a file preallocated like the commit log's segments."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    record = os.urandom(RECORD_BYTES)
    try:
        os.posix_fallocate(descriptor, 0, PREALLOCATED_BYTES)
        os.fsync(descriptor)
        for number in range(WARM_UP + SYNCS):
            together.wait()
            started = time.perf_counter()
            os.pwrite(descriptor, record, number * RECORD_BYTES)
            os.fdatasync(descriptor)
            taken_s.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()


def round_trip() -> Quantiles:
    """Measure 1 KiB to another thread over TCP and back."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        echo = threading.Thread(target=_echo, args=(server,))
        echo.start()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = os.urandom(RECORD_BYTES)
        taken_s = []
        for _ in range(WARM_UP + ROUND_TRIPS):
            started = time.perf_counter()
            client.sendall(message)
            _receive(client, RECORD_BYTES)
            taken_s.append(time.perf_counter() - started)
        client.shutdown(socket.SHUT_WR)
        echo.join()
    return quantiles(taken_s[WARM_UP:])


class StolenTime(NamedTuple):
    """Ticks since the start of the machine: those its cores did not get from their host, and all of them."""

    stolen: int
    total: int


def stolen_time() -> StolenTime:
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user_to_steal = ticks[:8]  # the guests' time is part of user and nice
    return StolenTime(user_to_steal[7], sum(user_to_steal))


def stolen_percent(before: StolenTime, after: StolenTime) -> float:
    return round(100 * (after.stolen - before.stolen) / max(1, after.total - before.total), 1)


def quantiles(taken_s: list[float]) -> Quantiles:
    ordered = sorted(taken_s)
    return Quantiles(ordered[len(ordered) // 2] * 1000, ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)] * 1000)


def _echo(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(RECORD_BYTES):
            connection.sendall(data)


def _receive(connection: socket.socket, length: int) -> None:
    while length:
        data = connection.recv(length)
        if not data:
            raise ConnectionError("the echo thread ended")
        length -= len(data)
