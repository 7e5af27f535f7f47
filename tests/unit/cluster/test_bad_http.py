"""Answers to what is no HTTP are problems, and end the connection; requests are never taken for it, however cut."""

import asyncio
import json

from tests.unit.cluster.conftest import Node
from tests.unit.cluster.test_early_answer import address_of

HOST = b"Host: localhost\r\n"
CHUNKED = b"PUT /v1/topics/t HTTP/1.1\r\n%bContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n%b\r\n" % HOST
BAD = {
    "no-path": b"GET\r\n\r\n",
    "no-method": b"\xd9\x80\x17, the middle of a body\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00" * 10,
    "zeros": bytes(1000) + b"\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "no-host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "long-line": b"GET /%b HTTP/1.1\r\n%b\r\n" % (b"x" * 20_000, HOST),
    "long-header": b"GET /healthz HTTP/1.1\r\n%bX: %b\r\n\r\n" % (HOST, b"x" * 20_000),
    "many-headers": b"GET /healthz HTTP/1.1\r\n%b%b\r\n" % (HOST, b"X: y\r\n" * 1_000),
    "header-without-a-name": b"GET /healthz HTTP/1.1\r\n%b: x\r\n\r\n" % HOST,
    "two-hosts": b"GET /healthz HTTP/1.1\r\n%b%b\r\n" % (HOST, HOST),
    "length-and-chunks": b"POST / HTTP/1.1\r\n%bContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    % HOST,
    "length-of-no-number": b"POST / HTTP/1.1\r\n%bContent-Length: many\r\n\r\n" % HOST,
    "bad-chunk": CHUNKED % HOST + b"no number\r\n",
    "bad-end-of-a-chunk": CHUNKED % HOST + b"2\r\n{}more\r\n",
}


async def answers_to(node: Node, *parts: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Return status, headers and body of each answer until the node closes the connection."""
    reader, writer = await asyncio.open_connection(*address_of(node))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        answers = []
        while line := await reader.readline():
            headers = {}
            while field := (await reader.readline()).strip().decode():
                name, _, value = field.partition(": ")
                headers[name.lower()] = value
            answers.append((int(line.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))))
        return answers
    finally:
        writer.close()


async def test_what_is_no_http_is_a_problem_and_ends_the_connection(node: Node) -> None:
    for name, sent in BAD.items():
        ((status, headers, body),) = await answers_to(node, sent)
        problem = json.loads(body)
        assert (status, problem["status"], problem["code"]) == (400, 400, "invalid_request"), name
        assert headers["content-type"].startswith("application/problem+json"), name
        assert headers["x-content-type-options"] == "nosniff", name
        assert len(problem["detail"]) < 300, problem
        assert problem["detail"].isprintable(), problem


async def test_a_body_that_breaks_while_it_is_read_is_a_problem_and_ends_the_connection(node: Node) -> None:
    """Found: the request waited for the rest of its body, and was told request_timeout."""
    reader, writer = await asyncio.open_connection(*address_of(node))
    try:
        writer.write(CHUNKED % (HOST + b"Expect: 100-continue\r\n"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"2\r\n{}\r\nno number\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["code"] == "invalid_request"
    finally:
        writer.close()


async def test_requests_in_a_row_are_answered_wherever_they_are_cut(node: Node) -> None:
    body = b'{"messages": [{"body": "eA=="}]}'
    head = b"POST /v1/topics/none/messages HTTP/1.1\r\n%bContent-Type: application/json\r\n" % HOST
    sent = HEALTH + head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) + HEALTH
    sent += HEALTH.replace(HOST, HOST + b"Connection: close\r\n")
    for place in range(1, len(sent), 7):
        answers = await answers_to(node, sent[:place], sent[place:])
        assert [status for status, _, _ in answers] == [200, 404, 200, 200], place


async def test_a_request_that_waits_behind_another_and_breaks_is_a_problem(node: Node) -> None:
    """Nothing more is read while it waits, so it is under way when its body breaks."""
    waits = b"GET /v1/log?from_index=1000000&wait_ms=300 HTTP/1.1\r\n%b\r\n" % HOST
    reader, writer = await asyncio.open_connection(*address_of(node))
    try:
        writer.write(waits + CHUNKED % HOST + b"2\r\n{}\r\n")
        while not node.core.waiters:  # both in one segment are judged as one
            await asyncio.sleep(0)
        writer.write(b"no number\r\n")
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 400 " in answered
    finally:
        writer.close()
