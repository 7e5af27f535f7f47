"""Fuzzes a real node with requests made from its own /openapi.json: every answer is described, none is a bug, and a
refused request changes nothing.
"""

import json
import socket
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.problems import KINDS
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged
from tests.fuzz.openapi import JSON, NAMES, Call, Schema, calls
from tests.patience import PATIENCE_S
from tests.unit.cluster.schema_check import violations

pytestmark = pytest.mark.process

PROBLEM_JSON: Final = "application/problem+json"
TOPICS_MAX: Final = 40
VOLATILE: Final = ("generation", "members", "check_times", "next_check_at_ms")
"""Fields that change by themselves, because members expire and checks fall due."""
TIMED: Final = ("queue_offsets", "bytes", "positions", "max_offset", "lag", "held")
"""Fields that change while messages wait for their time, or for a pop consumer's acknowledgement."""
MEMORY_GROWTH_BYTES_MAX: Final = 200 << 20
REQUEST: Final = (
    b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 29\r\nConnection: close\r\n\r\n{"messages":[{"body":"text"}]}'
)


class Target:
    """A running node with its description, and the state it had when it was last asked."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.make_topics()
        self.schema: Schema = node.request("GET", "/openapi.json").json()
        self.look()

    def look(self) -> None:
        """Remember the node's state, and whether parts of it change by themselves."""
        self.ignored: tuple[str, ...] = VOLATILE
        groups = self.node.request("GET", "/v1/groups").json()["groups"]
        held = any(offset["held"] for group in groups for offset in group["offsets"])
        if held or "keelmq_timers_pending 0.0" not in self.node.request("GET", "/metrics").body.decode():
            self.ignored += TIMED
        self.state = self.observe()

    def observe(self) -> Any:
        """Return everything that requests can change, and nothing else does."""
        seen = [
            self.node.request("GET", path).json()
            for path in ("/v1/topics?system=true", "/v1/groups", "/v1/transactions?limit=1000")
        ]
        return _without(seen, self.ignored)

    def make_topics(self) -> None:
        """Make the topics that most requests use; an earlier request may have deleted them."""
        for topic in NAMES["topic"]:
            if self.node.request("GET", f"/v1/topics/{topic}").status == 404:
                assert self.node.request("PUT", f"/v1/topics/{topic}", payload={"queues": 2}).status == 201

    def tidy(self) -> None:
        """Remove topics that are too many to compare, and make the topics that have to be there."""
        topics = self.node.request("GET", "/v1/topics").json()["topics"]
        if len(topics) > TOPICS_MAX:
            for topic in topics:
                self.node.request("DELETE", f"/v1/topics/{topic['topic'].replace('%', '%25').replace('|', '%7C')}")
        self.make_topics()
        self.look()

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.node.pid}/statm") as statm:
            return int(statm.read().split()[1]) * 4096


def _without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: _without(member, names) for name, member in value.items() if name not in names}
    return [_without(each, names) for each in value if not _is_of_group(each)] if isinstance(value, list) else value


def _is_of_group(value: Any) -> bool:
    """Return whether the value describes a topic that is made when a group gives a message back, whenever that is."""
    return isinstance(value, dict) and str(value.get("topic", "")).startswith(("%RETRY%", "%DLQ%"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with ClusterProcess(tmp_path_factory.mktemp("http"), nodes=1) as cluster:
        node = cluster.wait_leader()
        target = Target(node)
        before = target.resident_bytes()
        yield target
        assert node.running()
        assert "Traceback" not in node.output()
        assert target.resident_bytes() - before < MEMORY_GROWTH_BYTES_MAX


def described(call: Call, reply: Reply, schema: Schema) -> list[str]:
    """Return the differences of the answer from the description."""
    operation = schema["paths"][call.template][call.method.lower()]
    response = operation["responses"].get(str(reply.status))
    code = reply.json()["code"] if reply.headers.get("content-type", "").startswith(PROBLEM_JSON) else None
    if call.odd_path and code in ("not_found", "method_not_allowed"):
        return []
    if response is None:
        return [] if call.odd_path and reply.status == 200 else [f"status {reply.status} is not described"]
    if code is not None and code not in KINDS:
        return [f"code {code} is not documented"]
    content = response.get("content")
    if content is None:
        return [f"a body of {len(reply.body)} bytes"] if reply.body else []
    media = reply.headers["content-type"].partition(";")[0]
    if media not in content:
        return [f"media type {media} is not described"]
    if media in (JSON, PROBLEM_JSON) and content[media]["schema"]:
        return violations(reply.json(), content[media]["schema"], schema)
    return []


@fuzz(500)
@given(data=st.data())
def test_every_answer_is_described_and_refusals_change_nothing(target: Target, data: st.DataObject) -> None:
    call = data.draw(calls(target.schema))
    reply = target.node.request(call.method, call.path, call.body, headers=call.headers)
    assert reply.status != 500, reply
    if not call.odd_path:
        assert described(call, reply, target.schema) == [], reply
    if reply.status >= 400:
        assert target.observe() == target.state
    elif call.method != "GET":
        target.tidy()


@fuzz(80)
@given(request=damaged(REQUEST))
def test_a_request_that_is_hardly_http_is_answered_or_cut_off(target: Target, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", target.node.http_port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionResetError:
            pass
    status = answer.split(b" ", 2)[1:2]
    assert not answer or (answer.startswith(b"HTTP/1.") and int(status[0]) not in (500, 501)), answer
    target.state = target.observe()


def test_the_description_is_fuzzed_whole(target: Target) -> None:
    operations = [operation for methods in target.schema["paths"].values() for operation in methods.values()]
    assert len(operations) > 25
    assert sum("requestBody" in operation for operation in operations) > 8
    assert json.loads(msgspec.json.encode(target.state))
