"""Entries, timelines, traces and events name the principal whose request they are, whatever the request says of itself.

The commands that name one are those that change or decide something. Messages, and what consumers do, name none.
"""

from typing import Any, get_args

import pytest

from cluster.process.offline.log_command import log_command
from keelmq.log.log_events import read_frames
from keelmq.log.log_records import LogRecord, entry_header, read_records
from raft.membership import decode_configuration
from store.commands.entry import Command, Proposal, decode_entry, encode_entry
from store.commands.groups import CommitOffsets, GiveBack, JoinGroup, LeaveGroup
from store.commands.messages import FireTimers, Produce
from store.commands.pops import AckPopped, ChangeInvisible, ExpirePopped, Pop
from store.commands.retention import CountBytes, ExpireMessages, ReleaseMessages, SweepIndex
from store.commands.topics import DeleteTopic
from store.commands.transactions import Discard, Prepare, RecordChecks
from store.log.record import KIND_CONFIG, KIND_ENTRY
from tests.unit.cluster.conftest import Node
from tests.unit.cluster.test_join_tokens import ADMINISTRATOR
from tests.unit.cluster.test_join_tokens import closed as closed

NAMELESS = {
    *(Produce, Prepare, JoinGroup, LeaveGroup, CommitOffsets, GiveBack, Pop, AckPopped, ChangeInvisible),
    *(RecordChecks, Discard, FireTimers, ExpirePopped, ExpireMessages, ReleaseMessages, SweepIndex, CountBytes),
}
"""Commands of messages and consumers, of which there are many, and those that no request asks for."""
EVERYTHING = [{"actions": ["*"], "resource": "*"}]
CLAIM = {"operator": "somebody-else", "reason": "why not"}
FORCE = {**CLAIM, "source": "operator", "force": True}


class Person:
    """A user of the node, with the name `ops`."""

    def __init__(self, node: Node, token: str) -> None:
        self.node = node
        self._headers = {"Authorization": f"Bearer {token}"}

    async def do(self, method: str, path: str, body: Any = None) -> Any:
        """Return the body of an answer that says that the request was carried out."""
        async with self.node.session.request(method, path, json=body, headers=self._headers) as response:
            assert response.status < 300, (method, path, await response.text())
            return await response.json(content_type=None) if "json" in response.content_type else await response.read()


@pytest.fixture
async def ops(closed: Node) -> Person:
    assert (await closed.call("PUT", "/v1/users/ops", {"rules": EVERYTHING})).status == 201
    token = (await closed.call("POST", "/v1/users/ops/tokens", {})).body["token"]
    return Person(closed, token)


def commands_since(node: Node, index: int) -> list[tuple[Command, str | None]]:
    """Return the commands of the entries after `index`, each with its principal."""
    found: list[tuple[Command, str | None]] = []
    for at in range(index + 1, node.core.raft.applied_index + 1):
        record = node.core.log.entry(at)
        if record.kind == KIND_ENTRY:
            entry = decode_entry(record.payload)
            found += [(command, entry.principals.get(number)) for number, command in enumerate(entry.commands)]
    return found


async def prepare(ops: Person, transaction_id: str) -> None:
    half = {
        "transaction_id": transaction_id,
        "producer_group": "shop",
        "messages": [{"topic": "orders", "body": "x", "message_id": f"{transaction_id}-message"}],
    }
    await ops.do("POST", "/v1/transactions", half)


async def use_everything(ops: Person) -> None:
    """Send every command that a request may cause, most of them once."""
    await ops.do("PUT", "/v1/topics/orders", {"queues": 1, "type": "any"})
    await ops.do("PUT", "/v1/cluster/settings", {"reject_transactions": False})
    await ops.do("PUT", "/v1/producer-groups/shop", {"check_url": None})
    await ops.do("PUT", "/v1/groups/g", {"retry_max_attempts": 1, "retry_delays_ms": [0]})
    delayed = {"messages": [{"body": "later", "message_id": "later", "delay_ms": 600_000}]}
    await ops.do("POST", "/v1/topics/orders/messages", {"messages": [{"body": "x", "message_id": "m"}]})
    await ops.do("POST", "/v1/topics/orders/messages", delayed)
    await ops.do("DELETE", "/v1/topics/orders/scheduled/later")
    for source in (("orders", 0, 0), ("%RETRY%g", 0, 0)):
        given = dict(zip(("topic", "queue", "offset"), source, strict=True))
        await ops.do("POST", "/v1/groups/g/retries", {"messages": [given]})
    await ops.do("POST", "/v1/groups/g/dead-letters/replay", {"offsets": [0]})
    await ops.do("PUT", "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]})
    await ops.do("POST", "/v1/groups/g/reset", {"topic": "orders", "to": "earliest"})
    await ops.do("POST", "/v1/groups/h/clone-offsets", {"source": "g"})
    await ops.do("POST", "/v1/groups/g/pause", CLAIM)
    for transaction_id in ("one", "two", "lost"):
        await prepare(ops, transaction_id)
    await ops.do("POST", "/v1/transactions/one/commit", {**CLAIM, "source": "operator"})
    await ops.do(
        "POST", "/v1/transactions/decisions", {"decisions": [{"transaction_id": "two", "decision": "rollback"}]}
    )
    await ops.node.core.propose(Discard(("lost",)))
    await ops.do("POST", "/v1/transactions/lost/resume", CLAIM)
    await ops.node.core.propose(Discard(("lost",)))
    await ops.do("POST", "/v1/transactions/lost/commit", FORCE)
    await ops.do("PUT", "/v1/users/other", {"rules": []})
    await ops.do("DELETE", "/v1/users/other")
    await ops.do("POST", "/v1/topics/orders/purge", {})
    await ops.do("DELETE", "/v1/groups/h")
    await ops.do("DELETE", "/v1/topics/orders")


async def test_what_a_user_changes_or_decides_names_him(ops: Person) -> None:
    before = ops.node.core.raft.applied_index
    await use_everything(ops)
    found = commands_since(ops.node, before)
    named = {type(command) for command, principal in found if principal == "ops"}
    assert {principal for _, principal in found} == {"ops", None}
    assert not named & NAMELESS
    assert named | NAMELESS == set(get_args(Command)), "every other command, and each was used here"
    assert {type(command) for command, principal in found if principal is None} <= NAMELESS


async def test_timeline_and_trace_name_the_principal_beside_the_claimed_operator(ops: Person) -> None:
    await use_everything(ops)
    timeline = (await ops.do("GET", "/v1/transactions/lost"))["timeline"]
    assert [(each["event"], each.get("principal"), each.get("operator")) for each in timeline] == [
        ("prepared", None, None),
        ("discarded", None, None),
        ("resumed", "ops", "somebody-else"),
        ("discarded", None, None),
        ("committed", "ops", "somebody-else"),
    ]
    (rolled_back,) = (await ops.do("GET", "/v1/transactions/two"))["timeline"][1:]
    assert (rolled_back["event"], rolled_back["principal"]) == ("rolled_back", "ops")


async def test_a_trace_names_who_cancelled_replayed_and_reset(ops: Person) -> None:
    await ops.do("PUT", "/v1/topics/orders", {"queues": 1, "type": "any"})
    await ops.do("PUT", "/v1/groups/g", {"retry_max_attempts": 1, "retry_delays_ms": [0]})
    await ops.do("POST", "/v1/topics/orders/messages", {"messages": [{"body": "x", "message_id": "m"}]})
    delayed = {"messages": [{"body": "later", "message_id": "later", "delay_ms": 600_000}]}
    await ops.do("POST", "/v1/topics/orders/messages", delayed)
    await ops.do("DELETE", "/v1/topics/orders/scheduled/later")
    for topic in ("orders", "%RETRY%g"):
        given = {"topic": topic, "queue": 0, "offset": 0}
        await ops.do("POST", "/v1/groups/g/retries", {"messages": [given]})
    await ops.do("POST", "/v1/groups/g/dead-letters/replay", {"offsets": [0]})
    await ops.do("PUT", "/v1/groups/g/offsets", {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]})
    await ops.do("POST", "/v1/groups/g/reset", {"topic": "orders", "to": "earliest"})

    async def named(message_id: str) -> dict[str, str | None]:
        (trace,) = (await ops.do("GET", f"/v1/messages/{message_id}/trace"))["traces"]
        return {each["event"]: each.get("principal") for each in trace["events"]}

    later, message = await named("later"), await named("m")
    assert later == {"scheduled": None, "taken_back": "ops"}
    assert {name for name, principal in message.items() if principal == "ops"} == {"replayed", "rewound"}
    assert set(message.values()) == {"ops", None}


async def test_events_of_the_log_name_the_principal(ops: Person) -> None:
    await use_everything(ops)
    events = await ops.do("GET", "/v1/log/events?from_index=1&blocks=false")
    by_type: dict[str, set[str | None]] = {}
    for entry in read_frames(events):
        for event in entry.events:
            by_type.setdefault(event.type, set()).add(event.principal)
    for kind in ("COMMIT", "ROLLBACK", "RESUME", "CANCEL", "RESET", "GROUP_PAUSE"):
        assert by_type[kind] == {"ops"}, kind
    for kind in ("HALF", "SCHEDULE", "DISCARD", "ACK"):
        assert by_type[kind] == {None}, kind
    assert by_type["RETRY"] == {"ops", None}, "a replayed dead letter, and one that the group gave back"


async def test_a_dump_of_the_log_names_the_principal(ops: Person, capsys: pytest.CaptureFixture[str]) -> None:
    await use_everything(ops)
    assert log_command("dump", ops.node.core.config.data_dir, 0) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line.split("  ", maxsplit=1)[-1] for line in lines]
    assert any(line.endswith("DeleteTopic by ops") for line in said)
    assert any(line.endswith("PutUser by admin") for line in said)
    assert any(line.endswith(" Produce") for line in said), "a message names nobody"


async def test_records_that_the_sdk_reads_name_the_principal(ops: Person) -> None:
    await ops.do("PUT", "/v1/topics/orders", {"queues": 1})
    await ops.do("POST", "/v1/topics/orders/messages", {"messages": [{"body": "x"}]})
    records = read_records(await ops.do("GET", "/v1/log?from_index=1"))
    headers = [header for record in records if (header := entry_header(record)) is not None]
    said = [pair for header in headers for pair in zip(header.command_names, header.principals, strict=True)]
    assert said[-2:] == [("put-topic", "ops"), ("produce", None)]


def test_the_sdk_reads_an_entry_whose_leader_was_not_sure_of_the_time() -> None:
    payload = encode_entry(7, [Proposal(DeleteTopic("a"), principal="ann")], in_doubt=True)
    header = entry_header(LogRecord(1, 1, KIND_ENTRY, 0, len(payload), payload))
    assert header is not None
    assert (header.in_doubt, header.principals) == (True, ["ann"])


async def test_a_configuration_names_who_asked_for_it(ops: Person) -> None:
    learner = {"node_id": 9, "peer_address": "127.0.0.1:9", "http_address": "http://127.0.0.1:8"}
    await ops.do("POST", "/v1/cluster/members", learner)
    await ops.do("DELETE", "/v1/cluster/members/9?force=true")
    core = ops.node.core
    records = [core.log.entry(at) for at in range(core.log.first_index, core.raft.applied_index + 1)]
    named = [decode_configuration(each.payload).principal for each in records if each.kind == KIND_CONFIG]
    assert named[-2:] == ["ops", "ops"]
    assert set(named[:-2]) <= {""}, "the level of a new cluster is nobody's request"


async def test_without_authentication_nobody_is_named(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    node.session.headers["Authorization"] = f"Bearer {ADMINISTRATOR}"
    await node.call("DELETE", "/v1/topics/orders")
    found = commands_since(node, 0)
    assert len(found) >= 2
    assert {principal for _, principal in found} == {None}
