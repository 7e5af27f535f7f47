"""The structs that `Admin` returns: fields of newer and older brokers, pages, and answers that break the contract."""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest

import keelmq.admin
from keelmq import Admin, Connection
from keelmq.admin import GroupSettings, NodeCalls, ProducerGroups, QueueInfo, Rule, TopicInfo, Users
from keelmq.consuming.pop_calls import PopCalls
from keelmq.consuming.selection import Selection
from keelmq.errors import Corrupt, InvalidRequest, KeelMQError, UnknownOutcome
from keelmq.transport.http1 import ExchangeFailed, HttpResponse
from tests.unit.client.scripted import Request, ScriptedTransport, json_answer, problem

LEADER = "http://n1:1"
TOPIC: dict[str, Any] = {"topic": "orders", "queues": 1, "type": "any", "retention_ms": -1}
OFFSETS = {"queue": 0, "min_offset": 0, "max_offset": 5}
MEMBER: dict[str, Any] = {"member_id": "m1", "joined_at_ms": 1, "assignment": [{"topic": "orders", "queue": 0}]}
OFFSET = {"topic": "orders", "queue": 0, "offset": 3, "max_offset": 5, "lag": 2}
GROUP: dict[str, Any] = {
    "group": "points",
    "generation": 1,
    "members": [MEMBER],
    "offsets": [OFFSET],
    "retry_max_attempts": 16,
    "retry_delays_ms": [1_000],
}


def admin_of(*answers: dict[str, Any]) -> Admin:
    """Return an Admin whose requests get these answers in turn."""
    left = list(answers)

    def script(request: Request) -> HttpResponse:
        return json_answer({"leader_url": LEADER} if request.target == "/v1/cluster" else left.pop(0))

    return Admin(Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True)))


SENT: list[tuple[Callable[[Admin], Awaitable[object]], Any]] = [
    (lambda admin: admin.put_topic("orders"), {}),
    (lambda admin: admin.put_topic("orders", queues=4, type="fifo"), {"queues": 4, "type": "fifo"}),
    (lambda admin: admin.put_topic("orders", retention_bytes=-1), {"retention_bytes": -1}),
    (lambda admin: admin.purge_topic("orders"), {}),
    (lambda admin: admin.purge_topic("orders", queue=0), {"queue": 0}),
    (lambda admin: admin.put_group("g", retry_delays_ms=(5, 7)), {"retry_delays_ms": [5, 7]}),
    (lambda admin: admin.pause_group("g"), {"operator": "", "reason": ""}),
    (lambda admin: admin.reset_group("g", "t", queue=0, offset=0), {"topic": "t", "queue": 0, "offset": 0}),
    (lambda admin: admin.clone_offsets("g", "h"), {"source": "g"}),
    (lambda admin: admin.replay_dead_letters("g", (1, 2)), {"offsets": [1, 2]}),
    (lambda admin: admin.decide("t1", "commit"), {"source": "operator"}),
    (
        lambda admin: admin.decide("t1", "commit", force=True, operator="ann", reason="why"),
        {"source": "operator", "force": True, "operator": "ann", "reason": "why"},
    ),
    (lambda admin: admin.put_settings(reject_transactions=False), {"reject_transactions": False}),
    (lambda admin: admin.join_token(4), {"node_id": 4}),
    (lambda admin: admin.set_node_address(4, http_address="http://h:1"), {"http_address": "http://h:1"}),
    (lambda admin: admin.raise_feature_level(), {}),
    (lambda admin: admin.raise_feature_level(2), {"level": 2}),
    (lambda admin: admin.begin_backup(), {}),
    (lambda admin: NodeCalls(admin._connection).set_log_level(None), {"level": None, "logger": None}),
    (lambda admin: NodeCalls(admin._connection).undrain(), {"drained": False}),
    (lambda admin: ProducerGroups(admin._connection).put("g", check_url=None), {"check_url": None}),
    (lambda admin: Users(admin._connection).put("ann", certificates=()), {"certificates": []}),
    (
        lambda admin: Users(admin._connection).put("ann", rules=[Rule(actions=("send",), resource="*")], revision=0),
        {"rules": [{"effect": "allow", "actions": ["send"], "resource": "*", "networks": []}], "revision": 0},
    ),
    (lambda admin: Users(admin._connection).create_token("ann"), {}),
]


async def test_what_is_not_given_is_not_sent() -> None:
    """Older nodes refuse fields that they do not know, and a null is not the same as nothing."""
    for call, document in SENT:
        bodies: list[bytes] = []

        def script(request: Request, bodies: list[bytes] = bodies) -> HttpResponse:
            if request.method == "GET":
                return json_answer({"leader_url": LEADER})
            bodies.append(request.body)
            return problem(400, "invalid_request")

        with pytest.raises(InvalidRequest):
            await call(Admin(Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True))))
        assert [json.loads(body) for body in bodies] == [document]


NO_TEXT = "\udc80"
"""Half of a surrogate pair, as an argument of a command has for a byte that is no UTF-8."""


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.pause_group("g", reason=NO_TEXT),
        lambda admin: admin.delete_group("g", operator=NO_TEXT),
        lambda admin: admin.messages("orders", key=NO_TEXT),
        lambda admin: admin.transactions(after=NO_TEXT),
        lambda admin: admin.set_node_address(1, peer_address=NO_TEXT),
        lambda admin: Users(admin._connection).get(NO_TEXT),
        lambda admin: Users(admin._connection).revoke_token("ann", NO_TEXT),
        lambda admin: PopCalls(admin._connection, "g", "t", Selection(filter=NO_TEXT), "c").pop(1, 1, 0, "latest"),
    ],
)
async def test_what_is_no_text_is_refused_before_anything_is_sent(call: Callable[[Admin], Awaitable[object]]) -> None:
    def script(request: Request) -> HttpResponse:
        raise AssertionError(f"{request.target} is sent")

    with pytest.raises(InvalidRequest, match="not text"):
        await call(Admin(Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True))))


async def test_fields_of_a_newer_broker_are_ignored_and_kept_in_the_document() -> None:
    sent = {**TOPIC, "color": "red", "queue_offsets": [{**OFFSETS, "weight": 7}]}
    topic = await admin_of(sent).topic("orders")
    assert topic == TopicInfo(
        topic="orders",
        queues=1,
        type="any",
        retention_ms=-1,
        queue_offsets=(QueueInfo(queue=0, min_offset=0, max_offset=5),),
    )
    assert topic.document == sent


@pytest.mark.parametrize(
    ("call", "target"),
    [
        (lambda admin: admin.purge_topic("orders"), "/v1/topics/orders/purge"),
        (lambda admin: admin.delete_topic("orders"), "/v1/topics/orders"),
        (
            lambda admin: admin.delete_group("g"),
            "/v1/groups/g?with_dead_letters=false&operator=&reason=",
        ),
        (lambda admin: admin.reset_group("g", "orders", to="latest"), "/v1/groups/g/reset"),
        (lambda admin: admin.reset_group("g", "orders", timestamp_ms=1 << 50), "/v1/groups/g/reset"),
    ],
    ids=["purge", "delete topic", "delete group", "reset to the end", "reset to a time"],
)
async def test_what_would_take_or_skip_more_is_not_repeated(
    call: Callable[[Admin], Awaitable[object]], target: str
) -> None:
    """A second purge or reset would take or skip what was sent since the first, a second deletion what was made anew
    under the name."""
    asked: list[str] = []

    def script(request: Request) -> HttpResponse:
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": LEADER})
        asked.append(request.target)
        if len(asked) == 1:
            return problem(503, "overloaded")
        raise ExchangeFailed("no answer")

    admin = Admin(Connection([LEADER], transport=ScriptedTransport(script, answers_cluster=True), rng=lambda: 0.0))
    with pytest.raises(UnknownOutcome, match="ask what became of it"):
        await call(admin)
    assert asked == [target] * 2, "a refusal that changed nothing is tried again, a lost answer not"


async def test_fields_that_the_broker_leaves_out_have_defaults() -> None:
    topic = await admin_of(TOPIC).topic("orders")
    assert (topic.system, topic.created_at_ms, topic.queue_offsets) == (False, 0, ())
    (offset,) = (await admin_of(GROUP).group("points")).offsets
    assert (offset.lag, offset.held) == (2, 0)


async def test_a_list_is_read_page_by_page_and_each_entry_keeps_its_document() -> None:
    sent = [{**TOPIC, "topic": name, "color": "red"} for name in ("a", "b", "c")]
    topics = await admin_of({"topics": sent[:2], "next": "b"}, {"topics": sent[2:], "next": None}).topics()
    assert [each.topic for each in topics] == ["a", "b", "c"]
    assert [each.document for each in topics] == sent


async def test_a_group_is_completed_by_the_pages_of_its_members_and_offsets() -> None:
    admin = admin_of(
        {**GROUP, "members_next": "m1", "offsets_next": "orders/0"},
        {"members": [{**MEMBER, "member_id": "m2", "zone": "a"}], "next": None},
        {"offsets": [{**OFFSET, "queue": 1}], "next": None},
    )
    group = await admin.group("points")
    assert [each.member_id for each in group.members] == ["m1", "m2"]
    assert [each.queue for each in group.offsets] == [0, 1]
    assert (group.members_next, group.offsets_next) == (None, None)
    assert group.document == {
        **GROUP,
        "members": [MEMBER, {**MEMBER, "member_id": "m2", "zone": "a"}],
        "offsets": [OFFSET, {**OFFSET, "queue": 1}],
    }


async def test_the_document_of_a_struct_that_a_program_makes_has_its_fields() -> None:
    settings = GroupSettings(group="points", retry_max_attempts=3, retry_delays_ms=(1, 2))
    assert settings.document == {"group": "points", "retry_max_attempts": 3, "retry_delays_ms": [1, 2]}


@pytest.mark.parametrize("answer", [{}, {**TOPIC, "queues": "four"}, {**TOPIC, "queue_offsets": [{}]}])
async def test_an_answer_that_does_not_follow_the_contract_is_corrupt(answer: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="invalid_response"):
        await admin_of(answer).topic("orders")
    with pytest.raises(Corrupt, match="invalid_response"):
        await admin_of({"topics": [answer]}).topics()
    with pytest.raises(Corrupt, match="invalid_response"):
        await admin_of({"topics": None}).topics()


def _annotations(public: object) -> Iterator[tuple[str, object]]:
    """Yield the types of the fields of a class, of the parameters and results of its methods, or of a function; as
    texts where a module imports them for type checkers alone.
    """
    if not inspect.isclass(public):
        yield from (_hints_of(public) if inspect.isfunction(public) else {"type": public}).items()
        return
    yield from get_type_hints(public).items()
    for name, member in inspect.getmembers(public):
        called = member.fget if isinstance(member, property) else member
        if inspect.isfunction(called) and not name.startswith("_") and called.__module__.startswith("keelmq."):
            yield from ((f"{name}, {each}", hint) for each, hint in _hints_of(called).items())


def _hints_of(function: Callable[..., object]) -> dict[str, object]:
    try:
        return get_type_hints(function)
    except NameError:
        return inspect.get_annotations(function)


def _has_any(hint: object) -> bool:
    if isinstance(hint, str):
        return re.search(r"\bAny\b", hint) is not None
    return hint is Any or any(map(_has_any, get_args(hint)))


@pytest.mark.parametrize("public", [KeelMQError, *(getattr(keelmq.admin, name) for name in keelmq.admin.__all__)])
def test_no_public_name_of_admin_is_typed_any(public: object) -> None:
    """Found in review: the documents of answers, the values of options and further members of errors were."""
    assert [each for each, hint in _annotations(public) if _has_any(hint)] == []
