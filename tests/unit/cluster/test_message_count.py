"""The number of messages in a request is limited and told before they are decoded, so that nobody can hold up the
loop.
"""

from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from cluster.http.json_bodies import parse_json, parse_json_messages
from cluster.limits import DUPLICATES_SOUGHT_BYTES_MAX, REQUEST_MESSAGES_MAX
from cluster.messages.blocks import announced_messages
from cluster.messages.produce import JsonProduce
from cluster.problems import Problem
from tests.unit.cluster.conftest import Node

decoder = msgspec.json.Decoder(JsonProduce)
pack = msgspec.msgpack.encode


def body_of(*messages: bytes) -> bytes:
    return b'{"messages":[' + b",".join(messages) + b"]}"


def test_json_messages_up_to_the_limit_pass_and_one_more_does_not() -> None:
    assert len(parse_json_messages(decoder, body_of(*[b'{"body":"x"}'] * REQUEST_MESSAGES_MAX)).messages) == 10_000
    for _ in range(2):  # what one request counted is forgotten with the next
        with pytest.raises(Problem) as caught:
            parse_json_messages(decoder, body_of(*[b'{"body":"x"}'] * (REQUEST_MESSAGES_MAX + 1)))
        assert caught.value.code == "batch_too_large"


def test_decoding_stops_at_the_limit() -> None:
    """The next bytes are not even JSON, so the decoder cannot have looked at them."""
    with pytest.raises(Problem) as caught:
        parse_json_messages(decoder, body_of(*[b'{"\\u0062ody":"x"}'] * (REQUEST_MESSAGES_MAX + 1), b"broken"))
    assert caught.value.code == "batch_too_large"


def test_braces_within_messages_are_no_messages() -> None:
    (message,) = parse_json_messages(decoder, body_of(b'{"body":"' + b"{" * 20_000 + b'"}')).messages
    assert len(message.body) == 20_000


def test_fields_that_appear_twice_are_found_in_bodies_of_a_usual_size() -> None:
    twice = b'{"body":"x","tag":"%s","body":"y"}'
    with pytest.raises(Problem, match="appears twice"):
        parse_json(decoder, body_of(twice % b""))
    large = body_of(b'{"body":"' + b"x" * DUPLICATES_SOUGHT_BYTES_MAX + b'"}', twice % b"")
    assert parse_json(decoder, large).messages[1].body == "y"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_block_says_how_many_messages_it_has(count: int) -> None:
    assert announced_messages(pack([["x"]] * count)) == count


@pytest.mark.parametrize("block", [b"", b"\xdd", b"x", pack({"a": 1})])
def test_what_is_no_block_announces_nothing(block: bytes) -> None:
    assert announced_messages(block) == 0


async def test_the_blocks_of_a_request_are_counted_together(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 2})

    async def send(*counts: int) -> tuple[int, str | None]:
        blocks = [pack([[b"x"]] * count) for count in counts]
        batches = [
            {"queue": queue, "batch_id": f"b{counts[0]}-{queue}", "crc32c": crc32c(block), "block": block}
            for queue, block in enumerate(blocks)
        ]
        return await post(node, "/v1/topics/t/messages", {"batches": batches})

    assert await send(REQUEST_MESSAGES_MAX - 1, 1) == (200, None)
    assert await send(REQUEST_MESSAGES_MAX, 1) == (413, "batch_too_large")


async def test_the_blocks_of_a_half_transaction_are_counted_together(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 2})
    block = pack([[b"x"]] * (REQUEST_MESSAGES_MAX // 2 + 1))
    batches = [
        {"topic": "t", "queue": queue, "batch_id": f"b{queue}", "crc32c": crc32c(block), "block": block}
        for queue in range(2)
    ]
    half = {"producer_group": "g", "batches": batches}
    assert await post(node, "/v1/transactions", half) == (413, "batch_too_large")


async def post(node: Node, path: str, payload: Any) -> tuple[int, str | None]:
    """Send a msgpack request and return the status and the problem code."""
    headers = {"Content-Type": "application/msgpack"}
    async with node.session.post(path, data=pack(payload), headers=headers) as response:
        code = None if response.ok else (await response.json(content_type=None))["code"]
        return response.status, code
