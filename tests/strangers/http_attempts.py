"""Attempts at the HTTP API: raw, forged, replayed, reordered and oversized, with tokens and certificates of others."""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from tests.e2e.cluster_process import NodeProcess
from tests.strangers.loot import Loot
from tests.strangers.outcome import Admitted

ANSWER_TIMEOUT_S: Final = 20.0
"""Seconds for an answer: handshakes of one address wait for their turn."""
ADDRESSES: Final = 20
"""Strangers come from so many addresses."""
REFUSED_MIN: Final = 400

CALLS: Final = (
    ("DELETE", "/v1/topics/kept", b""),
    ("PUT", "/v1/topics/evil", b'{"queues":1}'),
    ("POST", "/v1/topics/kept/messages", b'{"messages":[{"body":"evil"}]}'),
    ("PUT", "/v1/users/evil", b'{"rules":[{"actions":["*"],"resource":"*"}]}'),
    ("POST", "/v1/users/reader/tokens", b"{}"),
    ("DELETE", "/v1/users/reader", b""),
    ("DELETE", "/v1/cluster/members/2", b""),
    ("POST", "/v1/cluster/members/2/lead", b""),
    ("POST", "/v1/cluster/join", b'{"node_id":9}'),
    ("POST", "/v1/cluster/join-tokens", b'{"node_id":9}'),
    ("PUT", "/v1/cluster/settings", b'{"reject_transactions":true}'),
    ("POST", "/v1/cluster/feature-level", b"{}"),
    ("PUT", "/v1/groups/evil", b'{"retry_max_attempts":1}'),
    ("PUT", "/v1/groups/evil/offsets", b'{"offsets":[{"topic":"kept","queue":0,"offset":0}]}'),
    ("POST", "/v1/transactions", b'{"producer_group":"evil","messages":[{"topic":"kept","body":"x"}]}'),
    ("PUT", "/v1/producer-groups/evil", b'{"check_url":"http://127.0.0.1:1/"}'),
    ("POST", "/v1/backups", b"{}"),
    ("GET", "/v1/users", b""),
    ("GET", "/v1/log?from=1", b""),
)


def request(rng: random.Random, token: str | None, *further: str) -> bytes:
    """Return a request that would change or betray something, with what stands in its head."""
    method, path, body = rng.choice(CALLS)
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if method != "GET" else []
    return "\r\n".join([*lines, *further, "", ""]).encode() + body


def plain(rng: random.Random, token: str | None) -> bytes:
    return request(rng, token)


def twice(rng: random.Random, token: str | None) -> bytes:
    """Show two sets of credentials."""
    return request(rng, token, f"Authorization: Bearer {rng.randbytes(20).hex()}")


def other_scheme(rng: random.Random, token: str | None) -> bytes:
    return request(rng, None, f"Authorization: {rng.choice(('Basic', 'Negotiate', 'Bearer:'))} {token or 'x'}")


def named_by_header(rng: random.Random, token: str | None) -> bytes:
    """Claim to be somebody in headers that proxies set."""
    return request(rng, token, "X-Forwarded-User: admin", "X-SSL-Client-CN: admin", "X-Forwarded-For: 127.0.0.1")


def oversized(rng: random.Random, token: str | None) -> bytes:
    return request(rng, token, f"X-Large: {'x' * rng.choice((7_000, 9_000, 40_000))}")


def smuggled(rng: random.Random, token: str | None) -> bytes:
    """Hide a request in the body of another one."""
    return (
        b"POST /v1/topics/kept/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ) + request(rng, token)


def reordered(rng: random.Random, token: str | None) -> bytes:
    """Send the body, and then the head."""
    head, _, body = request(rng, token).partition(b"\r\n\r\n")
    return body + b"\r\n" + head + b"\r\n\r\n"


def pipelined(rng: random.Random, token: str | None) -> bytes:
    return b"".join(request(rng, token).replace(b"Connection: close\r\n", b"") for _ in range(3)) + request(rng, token)


def noise(rng: random.Random, token: str | None) -> bytes:
    return rng.randbytes(rng.randint(1, 4_096))


SHAPES: Final[tuple[Callable[[random.Random, str | None], bytes], ...]] = (
    *(plain, plain, plain, twice, other_scheme, named_by_header, oversized, smuggled, reordered, pipelined, noise),
)


async def attempt(node: NodeProcess, loot: Loot, rng: random.Random) -> str:
    """Make one attempt, and return its kind. Raises Admitted when it succeeds."""
    shape = rng.choice(SHAPES)
    certificate = rng.choice((*loot.clients, "nothing", "without TLS"))
    kind = rng.choice((*loot.tokens, None))
    name = f"http: {shape.__name__}, certificate {certificate}, token {kind}"
    data = shape(rng, None if kind is None else loot.tokens[kind])
    source = f"127.0.0.{rng.randint(2, 1 + ADDRESSES)}"
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", node.http_port, ssl=loot.clients.get(certificate), local_addr=(source, 0)
            )
            try:
                writer.write(data)
                if writer.can_write_eof():
                    writer.write_eof()
                answer = await reader.read(1 << 20)
                while part := await reader.read(1 << 20):
                    answer += part
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return name  # cut off, or left alone
    for line in answer.split(b"HTTP/1.1 ")[1:]:
        status = int(line[:3])
        if status < REFUSED_MIN and status != 307:
            raise Admitted(f"{name}: is answered {status}: {line[:200]!r}")
    return name
