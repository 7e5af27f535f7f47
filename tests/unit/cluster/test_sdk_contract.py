"""The SDK's structs match the document that the broker serves: the SDK sends no field that the broker does not know,
and waits for none that it does not always send, and both mean the same words.
"""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import pytest

import cluster.limits
import keelmq.limits
import store.limits
from cluster.budgets import request_deadline
from cluster.operations import join_api, user_api
from cluster.operations import log_events as broker_events
from keelmq import admin, wire
from keelmq.admin import requests, users
from keelmq.consuming import pop_calls
from keelmq.log import log_events as sdk_events
from raft import config as raft_config
from store.messages.outcomes import EventType
from tests.unit.cluster.conftest import Node

Schema = dict[str, Any]
Own = tuple[Schema, dict[str, Schema]]
"""A struct's schema, and those of the structs in it."""

JSON, MSGPACK = wire.JSON, wire.MSGPACK
GROUP, TOPIC = "/v1/groups/{group}", "/v1/topics/{topic}"
USER = "/v1/users/{user}"
DECISIONS = tuple(f"/v1/transactions/{{transaction_id}}/{decision}" for decision in ("commit", "rollback", "unknown"))


def _listing(name: str, struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct for an answer of which the SDK reads the list `name` only, entry by entry."""
    return msgspec.defstruct(f"{struct.__name__}s", [(name, list[struct])])  # type: ignore[valid-type]


class Sent(NamedTuple):
    struct: type[msgspec.Struct]
    method: str
    path: str
    media: str = JSON


SENT = (
    Sent(wire.ProduceRequest, "post", f"{TOPIC}/messages", MSGPACK),
    Sent(wire.HalfRequest, "post", "/v1/transactions", MSGPACK),
    Sent(wire.HalvesRequest, "post", "/v1/transactions/batch", MSGPACK),
    *(Sent(wire.DecisionRequest, "post", path) for path in DECISIONS),
    Sent(wire.DecisionsRequest, "post", "/v1/transactions/decisions"),
    Sent(wire.JoinRequest, "post", f"{GROUP}/members"),
    Sent(wire.CommitRequest, "put", f"{GROUP}/offsets"),
    Sent(wire.GiveBackRequest, "post", f"{GROUP}/retries"),
    Sent(wire.HeartbeatRequest, "post", f"{GROUP}/members/{{member_id}}/heartbeat"),
    Sent(pop_calls._Pop, "post", f"{GROUP}/pop"),
    Sent(pop_calls._Ack, "post", f"{GROUP}/pop/ack"),
    Sent(pop_calls._Invisible, "post", f"{GROUP}/pop/invisible"),
    Sent(requests.PutTopic, "put", TOPIC),
    Sent(requests.PurgeTopic, "post", f"{TOPIC}/purge"),
    Sent(requests.PutGroup, "put", GROUP),
    Sent(requests.ResetGroup, "post", f"{GROUP}/reset"),
    Sent(requests.CloneOffsets, "post", f"{GROUP}/clone-offsets"),
    Sent(requests.ReplayDeadLetters, "post", f"{GROUP}/dead-letters/replay"),
    *(Sent(requests.OperatorNote, "post", f"{GROUP}/{verb}") for verb in ("pause", "resume")),
    Sent(requests.OperatorNote, "post", "/v1/transactions/{transaction_id}/resume"),
    *(Sent(requests.OperatorDecision, "post", path) for path in DECISIONS),
    Sent(requests.SetCheckUrl, "put", "/v1/producer-groups/{group}"),
    Sent(requests.PutSettings, "put", "/v1/cluster/settings"),
    Sent(requests.AddNode, "post", "/v1/cluster/members"),
    Sent(requests.MakeJoinToken, "post", "/v1/cluster/join-tokens"),
    Sent(requests.SetAddress, "put", "/v1/cluster/members/{node_id}/address"),
    Sent(requests.RaiseFeatureLevel, "post", "/v1/cluster/feature-level"),
    Sent(requests.SetLogLevel, "put", "/v1/cluster/log-level"),
    Sent(requests.Drain, "put", "/v1/cluster/drain"),
    Sent(users.PutUser, "put", USER),
    Sent(users.MakeToken, "post", f"{USER}/tokens"),
)
READ = (
    Sent(wire.ProduceResponse, "post", f"{TOPIC}/messages", MSGPACK),
    Sent(wire.HalfResponse, "post", "/v1/transactions", MSGPACK),
    Sent(wire.HalvesResponse, "post", "/v1/transactions/batch", MSGPACK),
    *(Sent(wire.DecisionResponse, "post", path) for path in DECISIONS),
    Sent(wire.DecisionsResponse, "post", "/v1/transactions/decisions"),
    Sent(wire.ChecksResponse, "get", "/v1/producer-groups/{group}/checks"),
    Sent(wire.PullResponse, "get", f"{TOPIC}/queues/{{queue}}/messages", MSGPACK),
    Sent(wire.OffsetResponse, "get", f"{TOPIC}/queues/{{queue}}/offsets"),
    Sent(wire.Membership, "post", f"{GROUP}/members"),
    Sent(wire.Membership, "post", f"{GROUP}/members/{{member_id}}/heartbeat"),
    Sent(wire.GroupOffsetsResponse, "get", f"{GROUP}/offsets"),
    Sent(wire.GroupDetail, "get", GROUP),
    Sent(wire.GiveBackResponse, "post", f"{GROUP}/retries"),
    Sent(wire.LeaderView, "get", "/v1/cluster"),
    Sent(wire.TopicInfo, "get", TOPIC),
    Sent(pop_calls._PopAnswer, "post", f"{GROUP}/pop"),
    Sent(pop_calls._AckAnswer, "post", f"{GROUP}/pop/ack"),
    Sent(pop_calls._InvisibleAnswer, "post", f"{GROUP}/pop/invisible"),
    Sent(admin.TopicInfo, "get", TOPIC),
    Sent(admin.TopicInfo, "put", TOPIC),
    Sent(_listing("topics", admin.TopicInfo), "get", "/v1/topics"),
    Sent(admin.PurgedTopic, "post", f"{TOPIC}/purge"),
    Sent(_listing("messages", admin.FoundMessage), "get", "/v1/messages/{message_id}"),
    Sent(_listing("traces", admin.MessageTrace), "get", "/v1/messages/{message_id}/trace"),
    Sent(admin.CausedPage, "get", "/v1/messages/{message_id}/caused"),
    Sent(_listing("messages", admin.StoredMessage), "get", f"{TOPIC}/queues/{{queue}}/messages"),
    Sent(admin.MessagePage, "get", f"{TOPIC}/messages"),
    Sent(admin.ScheduledPage, "get", f"{TOPIC}/scheduled"),
    Sent(admin.TransactionPage, "get", "/v1/transactions"),
    Sent(admin.TransactionDetail, "get", "/v1/transactions/{transaction_id}"),
    *(Sent(admin.DecidedTransaction, "post", path) for path in DECISIONS),
    Sent(admin.ResumedTransaction, "post", "/v1/transactions/{transaction_id}/resume"),
    Sent(_listing("groups", admin.GroupDetail), "get", "/v1/groups"),
    Sent(admin.GroupDetail, "get", GROUP),
    Sent(_listing("members", admin.GroupMember), "get", f"{GROUP}/members"),
    Sent(_listing("offsets", admin.GroupOffset), "get", f"{GROUP}/offsets"),
    Sent(admin.GroupSettings, "put", GROUP),
    *(Sent(admin.GroupPauseResult, "post", f"{GROUP}/{verb}") for verb in ("pause", "resume")),
    Sent(admin.CommittedOffsets, "post", f"{GROUP}/reset"),
    Sent(admin.CommittedOffsets, "post", f"{GROUP}/clone-offsets"),
    Sent(admin.DeadLetterPage, "get", f"{GROUP}/dead-letters"),
    Sent(admin.ReplayResult, "post", f"{GROUP}/dead-letters/replay"),
    Sent(_listing("producer_groups", admin.ProducerGroup), "get", "/v1/producer-groups"),
    Sent(admin.ProducerGroup, "put", "/v1/producer-groups/{group}"),
    Sent(admin.ClusterStatus, "get", "/v1/cluster"),
    Sent(admin.ClusterSettings, "get", "/v1/cluster/settings"),
    Sent(admin.ClusterSettings, "put", "/v1/cluster/settings"),
    Sent(admin.ClusterMembers, "post", "/v1/cluster/members"),
    Sent(admin.JoinToken, "post", "/v1/cluster/join-tokens"),
    Sent(admin.ClusterMembers, "post", "/v1/cluster/members/{node_id}/promote"),
    Sent(admin.ClusterMembers, "post", "/v1/cluster/members/{node_id}/lead"),
    Sent(admin.ClusterMembers, "put", "/v1/cluster/members/{node_id}/address"),
    Sent(admin.ClusterMembers, "delete", "/v1/cluster/members/{node_id}"),
    Sent(admin.RebuildStarted, "post", "/v1/cluster/rebuild"),
    Sent(admin.BackupBegun, "post", "/v1/backups"),
    Sent(admin.FeatureLevel, "post", "/v1/cluster/feature-level"),
    Sent(_listing("principals", admin.QuotaUsage), "get", "/v1/cluster/quotas"),
    Sent(_listing("clients", admin.ConnectedClient), "get", "/v1/cluster/clients"),
    Sent(admin.NodeConfig, "get", "/v1/node/config"),
    Sent(admin.LogLevel, "get", "/v1/cluster/log-level"),
    Sent(admin.LogLevel, "put", "/v1/cluster/log-level"),
    Sent(admin.NodeDrain, "get", "/v1/cluster/drain"),
    Sent(admin.NodeDrain, "put", "/v1/cluster/drain"),
    Sent(admin.AuditPage, "get", "/v1/audit"),
    Sent(admin.PrincipalInfo, "get", "/v1/principal"),
    Sent(_listing("users", admin.UserInfo), "get", "/v1/users"),
    Sent(admin.UserInfo, "get", USER),
    Sent(admin.UserInfo, "put", USER),
    Sent(admin.NewToken, "post", f"{USER}/tokens"),
    Sent(admin.Verdict, "get", f"{USER}/explain"),
)
OTHER_NAMES = {
    "BATCH_MESSAGES_MAX": "BLOCK_MESSAGES_MAX",
    "REQUEST_BATCHES_MAX": "BATCHES_MAX",
    "DELAY_MS_MAX": "DELAY_MAX_MS",
}
LIMITS_OF_ONE_CALL = ((join_api, "JOIN_EXPIRES_MS_MAX"), (user_api, "TOKEN_EXPIRES_MS_MAX"))
NOT_A_LIMIT_OF_THE_BROKER = {"REQUEST_BYTES_MAX", "TRANSACTION_ID_LENGTH_MAX"}
IN_PARTS_ONLY = {"HalfResponse.problem", "DecisionResponse.problem"}
"""The SDK reads the answer to one transaction as it reads each part of the answer to several."""
NO_ANSWERS = {"definitions", "definition_plans"}
"""Modules of `keelmq.admin` whose structs are in files, and never sent or received."""
ADMIN_MODULES = [
    import_module(f"{admin.__name__}.{each.name}")
    for each in pkgutil.iter_modules(admin.__path__)
    if each.name not in NO_ANSWERS
]
NOT_CALLED = {("post", "/v1/cluster/join")}
"""Calls with a body that the SDK does not make: the first is for a new node alone."""
NOT_ON_THE_WIRE = {"AuditFilter", "NoFields", "PartResult", "PoppedMessage", "View"}


@pytest.fixture
async def served(node: Node) -> Schema:
    body: Schema = (await node.call("GET", "/openapi.json")).body
    return body


async def test_the_broker_knows_every_field_that_the_sdk_sends(served: Schema) -> None:
    for struct, method, path, media in SENT:
        content = served["paths"][path][method]["requestBody"]["content"]
        found = list(_drift(_own(struct), content[media]["schema"], served, struct.__name__, sends=True))
        assert found == [], f"{method.upper()} {path}"


async def test_the_broker_sends_every_field_that_the_sdk_reads(served: Schema) -> None:
    for struct, method, path, media in READ:
        responses = served["paths"][path][method]["responses"]
        for status in (each for each in responses if each.startswith("2")):
            theirs = responses[status]["content"][media]["schema"]
            found = list(_drift(_own(struct), theirs, served, struct.__name__, sends=False))
            assert found == [], f"{method.upper()} {path}"


def test_every_struct_of_the_sdk_is_compared() -> None:
    compared = {each for struct, *_ in (*SENT, *READ) for each in _structs_in(msgspec.inspect.type_info(struct))}
    written = {
        value
        for module in (wire, pop_calls, *ADMIN_MODULES)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }
    sent_in_parts = {"HalfRequest", "HalfBatch"}
    left_out = {each for each in written - compared if each.__name__ not in NOT_ON_THE_WIRE | sent_in_parts}
    assert left_out == set()


async def test_the_sdk_has_a_struct_for_the_body_of_every_call(served: Schema) -> None:
    sent = {(method, path) for _, method, path, _ in SENT}
    taken = {
        (method, path)
        for path, methods in served["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }
    assert taken - sent == NOT_CALLED


async def test_a_struct_that_drifts_is_named(served: Schema) -> None:
    class Drifted(msgspec.Struct):
        offset: str
        timestamp: int

    theirs = served["paths"][f"{TOPIC}/queues/{{queue}}/offsets"]["get"]["responses"]["200"]["content"][JSON]["schema"]
    assert list(_drift(_own(Drifted), theirs, served, "Drifted", sends=False)) == [
        "Drifted.offset: ['string'] here, ['integer'] there",
        "Drifted.timestamp: the broker does not have it",
    ]


async def test_a_word_that_only_one_side_knows_is_named(served: Schema) -> None:
    class Prepared(msgspec.Struct):
        state: Literal["prepared", "committed"]

    class Popped(msgspec.Struct):
        start: Literal["earliest", "newest"]

    read = served["paths"]["/v1/transactions/{transaction_id}"]["get"]["responses"]["200"]["content"][JSON]["schema"]
    assert list(_drift(_own(Prepared), read, served, "Prepared", sends=False)) == [
        "Prepared.state: ['discarded', 'rolled_back'] of the broker are not known",
    ]
    sent = served["paths"][f"{GROUP}/pop"]["post"]["requestBody"]["content"][JSON]["schema"]
    found = list(_drift(_own(Popped), sent, served, "Popped", sends=True))
    assert "Popped.start: ['newest'] of this side are not known" in found


def _numbers(module: ModuleType) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}


def test_limits_of_the_sdk_are_the_brokers() -> None:
    """The broker does not refuse requests that the SDK lets through, nor the other way round."""
    broker = _numbers(cluster.limits) | _numbers(store.limits)
    broker |= {"NODE_ID_MAX": raft_config.NODE_ID_MAX, "TIMEOUT_MS_MAX": request_deadline.TIMEOUT_MS_MAX}
    broker |= {name: vars(module)[name] for module, name in LIMITS_OF_ONE_CALL}
    for name, value in _numbers(keelmq.limits).items():
        if name not in NOT_A_LIMIT_OF_THE_BROKER:
            assert value == broker[OTHER_NAMES.get(name, name)], name
    assert keelmq.limits.REQUEST_BYTES_MAX <= cluster.limits.REQUEST_BYTES_MAX
    assert keelmq.limits.DELAY_LEVELS_S == cluster.limits.DELAY_LEVELS_S
    assert keelmq.limits._NAME.pattern == cluster.limits.NAME_REGEX.pattern
    assert keelmq.limits._MESSAGE_ID.pattern == cluster.limits.MESSAGE_ID_REGEX.pattern
    assert keelmq.limits._TRANSACTION_ID.pattern == cluster.limits.ID_REGEX.pattern
    assert str(keelmq.limits.TRANSACTION_ID_LENGTH_MAX) in cluster.limits.ID_REGEX.pattern


@pytest.mark.parametrize(
    ("read", "sent"),
    [
        (sdk_events.LogEvent, broker_events.EventView),
        (sdk_events.EventMessages, broker_events.EventMessages),
        (sdk_events.EntryEvents, broker_events.EntryEvents),
    ],
)
def test_events_of_the_log_are_read_by_their_position(read: type[msgspec.Struct], sent: type[msgspec.Struct]) -> None:
    """Events are arrays: a field that only one side has moves all fields behind it."""
    assert read.__struct_fields__ == sent.__struct_fields__
    assert (read.__struct_config__.array_like, sent.__struct_config__.array_like) == (True, True)


def test_every_event_type_is_explained() -> None:
    text = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    assert [each for each in get_args(EventType) if f"`{each}`" not in text] == []


# --- comparing -------------------------------------------------------------------------------------------------------


def _structs_in(info: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the struct of a type, and those of which it consists."""
    if isinstance(info, msgspec.inspect.StructType):
        yield info.cls
    for part in ("fields", "types", "item_types"):
        for each in getattr(info, part, ()):
            yield from _structs_in(getattr(each, "type", each))
    for part in ("item_type", "key_type", "value_type"):
        if hasattr(info, part):
            yield from _structs_in(getattr(info, part))


def _own(struct: type[msgspec.Struct]) -> Own:
    (schema,), components = msgspec.json.schema_components([struct], ref_template="{name}")
    return schema, components


def _drift(
    own: tuple[Schema, dict[str, Schema]], theirs: Schema, served: Schema, at: str, *, sends: bool
) -> Iterator[str]:
    """Yield the differences of two schemas that would break a call, each with the place of the field."""
    schema, components = own
    ours, others = _alternatives(schema, components), _alternatives(theirs, served["components"]["schemas"])
    if not ours or not others:
        return  # anything goes
    mine, broker = _types(ours), _types(others)
    allowed, given = (broker, mine) if sends else (mine, broker)
    if not given - {"null"} <= allowed | ({"integer"} if "number" in allowed else set()):
        yield f"{at}: {sorted(mine)} here, {sorted(broker)} there"
        return
    words, known = (_words(ours), _words(others)) if sends else (_words(others), _words(ours))
    if words is not None and known is not None and words - known:
        yield f"{at}: {sorted(words - known)} of {'this side' if sends else 'the broker'} are not known"
    for our, other in zip(_of(ours, "array"), _of(others, "array"), strict=False):
        if "items" in our and "items" in other:
            yield from _drift((our["items"], components), other["items"], served, f"{at}[]", sends=sends)
    for our, other in zip(_of(ours, "object"), _of(others, "object"), strict=False):
        yield from _object_drift((our, components), other, served, at, sends=sends)


def _object_drift(own: Own, other: Schema, served: Schema, at: str, *, sends: bool) -> Iterator[str]:
    our, components = own
    if "properties" not in our or "properties" not in other:
        return
    missing = set(other.get("required", ()) if sends else our.get("required", ()))
    missing -= set(our.get("required", ()) if sends else other.get("required", ()))
    for name, schema in our["properties"].items():
        place = f"{at}.{name}"
        if name not in other["properties"]:
            if place in IN_PARTS_ONLY:
                continue
            yield f"{place}: the broker does not have it"
            continue
        if name in missing:
            yield f"{place}: required here, and not always sent" if not sends else f"{place}: the broker requires it"
        yield from _drift((schema, components), other["properties"][name], served, place, sends=sends)
    yield from (f"{at}.{name}: the broker requires it" for name in missing - our["properties"].keys())


def _alternatives(schema: Schema, components: dict[str, Schema]) -> list[Schema]:
    if "$ref" in schema:
        return _alternatives(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return [each for part in schema["anyOf"] for each in _alternatives(part, components)]
    return [schema] if "type" in schema or "enum" in schema or "const" in schema else []


def _types(alternatives: list[Schema]) -> set[str]:
    return {str(each.get("type", "string")) for each in alternatives}


def _words(alternatives: list[Schema]) -> set[str] | None:
    """Return the texts that are allowed, or None where any is."""
    texts = [each for each in alternatives if each.get("type", "string") == "string"]
    if any("enum" not in each and "const" not in each for each in texts):
        return None
    return {word for each in texts for word in each.get("enum", (each.get("const"),))}


def _of(alternatives: list[Schema], kind: str) -> list[Schema]:
    return [each for each in alternatives if each.get("type") == kind]
