"""Attacks by clients on a node, within the protocol or nearly so. An attack says which requests one connection repeats,
and how many connections repeat them at once.

    python -m tests.hostile_clients NAME PORT [--source 127.0.0.2] [--connections N] [--topic T] [--core N]

attacks until its standard input is closed. `make bench BENCH_ARGS=--hostile` measures how much of the service each
attack leaves to others. To add an attack, write a coroutine and name it in ATTACKS.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode

import msgspec
import zstandard
from crc32c import crc32c

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = "127.0.0.2"
"""Address that attacks come from. Loopback has further addresses, and honest clients use 127.0.0.1."""
MIB: Final = 1 << 20
HELD_BACK_BYTES: Final = 15 * MIB
PART: Final = b" " * (64 * 1024)
"""A part of a body: making 15 MiB for each connection would take memory bandwidth from everybody on the machine."""
LARGE_BYTES: Final = 4 * MIB
SMALL_RECEIVE_BUFFER_BYTES: Final = 4_096
PIPELINED: Final = 2_000
DUPLICATE_AMONG: Final = 7_900
"""Properties of a message that is refused for the last of them."""
NAME_CHARACTERS: Final = [chr(code) for code in range(ord("#"), ord("~")) if chr(code) != "\\"]
"""Characters of names; there are enough that all names have two."""
PACKED_MESSAGES: Final = 12
PACKED_PROPERTIES: Final = 8_000
"""Number of properties of each message: together about as many as a request may have, in 2 KiB of zstd."""
COSTLY_MESSAGES: Final = 64
COSTLY_FILTER: Final = " OR ".join(["p LIKE '%a%a%a%b'"] * 32)
WIDE_TOPICS: Final = 16
WIDE_QUEUES: Final = 1_024
FAR_INDEX: Final = 1 << 60
PAUSE_S: Final = 1.0
"""Pause between two tries of one connection: the benchmark measures held resources, not how quickly a client
connects.
"""


TOKEN_VARIABLE: Final = "KEELMQ_HOSTILE_TOKEN"
"""Names the environment variable with the token that all requests show; without it they show none."""


class Target(NamedTuple):
    """The node's port and the topic that the attack uses, and the source address that it comes from."""

    port: int
    topic: str
    source: str = SOURCE


@contextlib.asynccontextmanager
async def connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", target.port, local_addr=(target.source, 0), limit=SMALL_RECEIVE_BUFFER_BYTES
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(method: str, path: str, length: int | None = None, media: str = "application/json") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if token := os.environ.get(TOKEN_VARIABLE):
        lines.append(f"Authorization: Bearer {token}")
    if length is not None:
        lines += [f"Content-Type: {media}", f"Content-Length: {length}"]
    return "\r\n".join((*lines, "", "")).encode()


def json_request(method: str, path: str, payload: object) -> bytes:
    body = json.dumps(payload).encode()
    return head(method, path, len(body)) + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send the request, read the whole answer, whatever it says, and return its status."""
    writer.write(request)
    await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", answer)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(answer.split(maxsplit=2)[1])


async def ask_for_ever(target: Target, requests: Sequence[bytes], first: Sequence[bytes] = ()) -> None:
    """Send the requests over and over. `first` is sent once, and has to be done before the others are sent."""
    async with connected(target) as (reader, writer):
        for request in first:
            while await ask(reader, writer, request) >= 400:
                await asyncio.sleep(PAUSE_S)
        while True:
            for request in requests:
                await ask(reader, writer, request)


async def until_closed(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def hold_back_the_last_byte(target: Target) -> None:
    async with connected(target) as (reader, writer):
        writer.write(head("POST", f"/v1/topics/{target.topic}/messages", HELD_BACK_BYTES))
        for part in (PART,) * (HELD_BACK_BYTES // len(PART) - 1) + (PART[1:],):
            writer.write(part)
            await writer.drain()
        await until_closed(reader)


async def say_nothing(target: Target) -> None:
    async with connected(target) as (reader, _):
        await until_closed(reader)


async def begin_a_head(target: Target) -> None:
    async with connected(target) as (reader, writer):
        writer.write(b"POST /v1/topics")
        await until_closed(reader)


async def wait_for_a_message(target: Target) -> None:
    async with connected(target) as (reader, writer):
        writer.write(head("GET", f"/v1/topics/{target.topic}-none/queues/0/messages?offset=0&wait_ms=30000"))
        await until_closed(reader)


async def read_no_answer(target: Target) -> None:
    """Ask for a large answer and read none of it."""
    async with connected(target) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        path = f"/v1/topics/{target.topic}/queues/0/messages?offset=0&max_bytes={16 * MIB}&max_messages=10000"
        writer.write(head("GET", path))
        while not writer.transport.is_closing():
            await asyncio.sleep(PAUSE_S)
            writer.write(head("GET", "/healthz"))  # tells when the node has closed the connection
        await until_closed(reader)


async def read_no_small_answers(target: Target) -> None:
    """Ask for thousands of small answers and read none of them."""
    async with connected(target) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not writer.transport.is_closing():
            writer.write(head("GET", "/openapi.json") * PIPELINED)
            await writer.drain()
        await until_closed(reader)


async def send_large_bodies(target: Target) -> None:
    body = b'{"messages":[{"body":"%s"}]}' % (b"x" * (LARGE_BYTES - 100))
    await ask_for_ever(target, [head("POST", f"/v1/topics/{target.topic}/messages", len(body)) + body])


async def repeat_a_property(target: Target) -> None:
    """Send 63 KB of JSON that is refused, since one of its thousands of properties is there twice."""
    pairs = itertools.product(NAME_CHARACTERS, repeat=2)
    names = ["".join(pair) for pair in itertools.islice(pairs, DUPLICATE_AMONG)]
    properties = ",".join(f'"{name}":""' for name in (*names, names[-1]))
    body = b'{"messages":[{"body":"x","properties":{%s}}]}' % properties.encode()
    await ask_for_ever(target, [head("POST", f"/v1/topics/{target.topic}/messages", len(body)) + body])


async def read_packed_messages(target: Target) -> None:
    """Read as JSON a block of 2 KiB that unpacks to a hundred thousand properties."""
    properties = {f"{number:x}": "" for number in range(PACKED_PROPERTIES)}
    plain = msgspec.msgpack.encode([[b"x", None, [], properties]] * PACKED_MESSAGES)
    block = zstandard.ZstdCompressor().compress(plain)
    batch = {"queue": 0, "batch_id": "packed", "crc32c": crc32c(block), "block": block}
    body = msgspec.msgpack.encode({"batches": [batch | {"encoding": "zstd", "uncompressed_bytes": len(plain)}]})
    path = f"/v1/topics/{target.topic}-packed"
    first = [
        json_request("PUT", path, {"queues": 1}),
        head("POST", f"{path}/messages", len(body), "application/msgpack") + body,
    ]
    await ask_for_ever(target, [head("GET", f"{path}/queues/0/messages?offset=0")], first)


async def filter_at_great_cost(target: Target) -> None:
    """Filter by 32 LIKE on properties of 32 KB."""
    path = f"/v1/topics/{target.topic}-costly"
    message = {"body": "x", "properties": {"p": "a" * 32_000}}
    first = [
        json_request("PUT", path, {"queues": 1}),
        json_request("POST", f"{path}/messages", {"messages": [message] * COSTLY_MESSAGES}),
    ]
    query = urlencode({"offset": 0, "filter": COSTLY_FILTER})
    await ask_for_ever(target, [head("GET", f"{path}/queues/0/messages?{query}")], first)


async def wait_for_a_far_entry(target: Target) -> None:
    async with connected(target) as (reader, writer):
        writer.write(head("GET", f"/v1/log?from_index={FAR_INDEX}&wait_ms=30000"))
        await until_closed(reader)


async def join_widely(target: Target) -> None:
    """Join and leave a group of 16,384 queues, the most that a group may have."""
    topics = [f"{target.topic}-wide-{number}" for number in range(WIDE_TOPICS)]
    first = [json_request("PUT", f"/v1/topics/{topic}", {"queues": WIDE_QUEUES}) for topic in topics]
    path = f"/v1/groups/{target.topic}-wide/members"
    joining = json_request("POST", path, {"member_id": "m", "topics": topics})
    await ask_for_ever(target, [joining, head("DELETE", f"{path}/m")], first)


class Attack(NamedTuple):
    client: Callable[[Target], Awaitable[None]]
    connections: int
    says: str


ATTACKS: Final[Mapping[str, Attack]] = {
    "held-back-bodies": Attack(hold_back_the_last_byte, 80, "80 bodies of 15 MiB, the last byte held back"),
    "idle-connections": Attack(say_nothing, 4_200, "4,200 connections that say nothing"),
    "unfinished-heads": Attack(begin_a_head, 4_200, "4,200 connections that begin a request"),
    "long-polls": Attack(wait_for_a_message, 4_200, "4,200 connections that wait for a message"),
    "unread-answers": Attack(read_no_answer, 40, "40 connections that do not read their answer of 16 MiB"),
    "unread-small-answers": Attack(read_no_small_answers, 40, "40 connections that read none of 2,000 small answers"),
    "large-bodies": Attack(send_large_bodies, 20, "20 senders of 4 MiB"),
    "repeated-properties": Attack(repeat_a_property, 4, "4 senders of 7,900 properties, the last one twice"),
    "packed-messages": Attack(read_packed_messages, 4, "4 JSON readers of 2 KiB of zstd with 96,000 properties"),
    "costly-filters": Attack(filter_at_great_cost, 4, "4 readers with 32 LIKE on properties of 32 KB"),
    "far-entries": Attack(wait_for_a_far_entry, 1_000, "1,000 readers of the log that wait for a far entry"),
    "wide-joins": Attack(join_widely, 1, "a member of 16,384 queues that joins and leaves"),
}


async def attack(name: str, target: Target, connections: int | None = None) -> None:
    """Attack until cancelled."""
    chosen = ATTACKS[name]

    async def over_and_over() -> None:
        while True:
            with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
                await chosen.client(target)
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections or chosen.connections):
            tasks.create_task(over_and_over())


@contextlib.contextmanager
def attacking(name: str, target: Target, connections: int | None = None, *, core: int | None = None) -> Iterator[None]:
    """Attack from another process while the context lasts. The process runs only on `core` if one is given."""
    command = [sys.executable, "-m", "tests.hostile_clients", name, str(target.port)]
    command += ["--topic", target.topic, "--source", target.source, "--connections", str(connections or 0)]
    if core is not None:
        command += ["--core", str(core)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


async def until_input_ends(name: str, target: Target, connections: int | None) -> None:
    attacker = asyncio.create_task(attack(name, target, connections))
    await asyncio.to_thread(sys.stdin.read)
    attacker.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("port", type=int)
    parser.add_argument("--topic", default="hostile")
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--core", type=int, help="run on this core alone")
    given = parser.parse_args()
    if given.core is not None:
        os.sched_setaffinity(0, {given.core})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(until_input_ends(given.name, Target(given.port, given.topic, given.source), given.connections or None))


if __name__ == "__main__":
    main()
