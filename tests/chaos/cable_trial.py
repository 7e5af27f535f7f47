"""Measures the real effect of bad cables: `python -m tests.chaos.cable_trial` prints a line of JSON per trouble.

The trial runs in namespaces of its own: datagrams and a TCP stream go from the clients' side to an echo on node 1 and
back.
"""

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import Any, Final

import msgspec

from tests.chaos.cable import BadCables
from tests.chaos.isolation import enter_isolation
from tests.chaos.network import Network, host_of
from tests.chaos.node import REPOSITORY, die_with_parent
from tests.chaos.relay import READY, Trouble
from tests.patience import PATIENCE_S

PORT: Final = 7
DATAGRAMS: Final = 40
DATAGRAM_BYTES: Final = 100
PINGS: Final = 9
STREAM_BYTES: Final = 1 << 20
ANSWER_TIMEOUT_S: Final = 1.0
"""Seconds since the last answer after which no more is expected: nothing is under way for that long."""
STREAM_TIMEOUT_S: Final = PATIENCE_S
TROUBLES: Final = {
    "none": None,
    "relay": Trouble(),
    "delay": Trouble(delay_ms=(40.0, 60.0)),
    "reorder": Trouble(held_percent=30.0, held_ms=(5.0, 20.0)),
    "duplicate": Trouble(twice_percent=100.0, twice_ms=(0.0, 5.0)),
    "corrupt": Trouble(flipped_percent=100.0),
    "corrupt-some": Trouble(flipped_percent=2.0),
}


def echo() -> int:
    """Run the echo on the node's side: it returns every datagram and stream."""
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("", PORT))
    listener = socket.create_server(("", PORT), backlog=8)
    threading.Thread(target=echo_streams, args=(listener,), daemon=True).start()
    print(READY, flush=True)
    while True:
        data, sender = datagrams.recvfrom(1 << 16)
        datagrams.sendto(data, sender)


def echo_streams(listener: socket.socket) -> None:
    while True:
        stream, _ = listener.accept()
        with stream:
            while data := stream.recv(1 << 16):
                stream.sendall(data)


def datagrams() -> dict[str, Any]:
    """Return how many of DATAGRAMS came back, how many copies, and how many of them after one that was sent later."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((host_of(1), PORT))
        client.settimeout(ANSWER_TIMEOUT_S)
        seen: list[int] = []
        for number in range(DATAGRAMS):
            client.send(number.to_bytes(4) * (DATAGRAM_BYTES // 4))
            time.sleep(0.0005)
        while True:
            try:
                answer = client.recv(1 << 16)
            except TimeoutError:
                break
            if len(answer) != DATAGRAM_BYTES or answer != answer[:4] * (DATAGRAM_BYTES // 4):
                return {"damaged": True}
            seen.append(int.from_bytes(answer[:4]))
    late = sum(number < max(seen[:place], default=0) for place, number in enumerate(seen))
    return {"answered": len(set(seen)), "copies": len(seen), "late": late, "damaged": False}


def round_trip_ms() -> float | None:
    """Return the median of PINGS sequential round trips in ms; None when nothing comes back."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((host_of(1), PORT))
        client.settimeout(ANSWER_TIMEOUT_S)
        for number in range(PINGS):
            begun_s = time.monotonic()
            client.send(b"%d" % number)
            try:
                while client.recv(1 << 16) != b"%d" % number:
                    continue  # the second copy of an earlier one
            except TimeoutError:
                return None
            found.append((time.monotonic() - begun_s) * 1000)
    return round(statistics.median(found), 3)


async def stream_ms() -> float | None:
    """Return the ms for STREAM_BYTES to the node and back by TCP; None when they do not come back unchanged."""
    begun_s = time.monotonic()
    data = os.urandom(STREAM_BYTES)
    try:
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host_of(1), PORT)
            writer.write(data)
            answer = await reader.readexactly(STREAM_BYTES)
            writer.close()
    except (OSError, TimeoutError):
        return None
    return round((time.monotonic() - begun_s) * 1000, 1) if answer == data else None


async def measure(name: str, trouble: Trouble | None) -> dict[str, Any]:
    cables = BadCables([1])
    if trouble is not None:
        await cables.lay(trouble, name)
    try:
        found = {"trouble": name, "round_trip_ms": await asyncio.to_thread(round_trip_ms)}
        found |= await asyncio.to_thread(datagrams)
        # If every packet is damaged, no connection can be made, and waiting for one would tell nothing.
        found["stream_ms"] = await stream_ms() if found["answered"] else None
    finally:
        if trouble is not None:
            found["relay"] = msgspec.to_builtins(await cables.remove())
    return found


def trial() -> None:
    network = Network([1, 2])
    command = [*die_with_parent(), *network.prefix(1), sys.executable, "-m", "tests.chaos.cable_trial", "echo"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().strip() == READY
            for name, trouble in TROUBLES.items():
                print(msgspec.json.encode(asyncio.run(measure(name, trouble))).decode(), flush=True)
        finally:
            server.kill()


def main() -> int:
    if sys.argv[1:] == ["echo"]:
        return echo()
    refused = enter_isolation([], module="tests.chaos.cable_trial")
    if refused is not None:
        print(msgspec.json.encode({"skipped": refused}).decode())
        return 0
    trial()
    return 0


if __name__ == "__main__":
    sys.exit(main())
