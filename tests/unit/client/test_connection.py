"""The connection finds the leader and retries inside a time budget."""

import asyncio
import re
from collections.abc import Callable

import pytest

from keelmq.errors import (
    BrokerFault,
    Closed,
    DiskFull,
    InvalidRequest,
    NoLeader,
    Overloaded,
    QuotaExceeded,
    SendTimeout,
    TopicNotFound,
    Unavailable,
    UnknownOutcome,
)
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import AnswerTimedOut, ConnectFailed, ExchangeFailed, HttpResponse
from keelmq.transport.known_nodes import parse_servers
from keelmq.transport.retry import Deadline
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, problem, redirect


class Clock:
    """Monotonic time that moves only by `asyncio.sleep` of the code under test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("keelmq.transport.connection.asyncio.sleep", made.sleep)
    return made


def connect(clock: Clock, script: Callable[[Request], HttpResponse]) -> tuple[Connection, ScriptedTransport]:
    transport = ScriptedTransport(script)
    return Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=clock), transport


async def post(connection: Connection, clock: Clock, budget_ms: float = 3_000, tries: int = 3) -> HttpResponse:
    return await connection.call("POST", "/v1/x", body=b"{}", deadline=Deadline(budget_ms, clock), tries=tries)


async def test_a_redirect_is_followed_and_the_leader_remembered(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        return json_answer({}) if request.node == "n3" else redirect("http://n3:1/v1/x")

    connection, transport = connect(clock, script)
    await post(connection, clock)
    await post(connection, clock)
    assert [request.node for request in transport.requests] == ["n1", "n3", "n3"]
    assert connection.current == "http://n3:1"
    assert clock.pauses == []


def request_ids(transport: ScriptedTransport) -> list[str]:
    lines = [line for request in transport.requests for line in request.headers.splitlines()]
    return [line.partition(": ")[2] for line in lines if line.startswith("X-Request-Id: ")]


async def test_a_call_keeps_its_request_id_over_redirects_and_retries(clock: Clock) -> None:
    """The audit of every node, and the lines of every try, are found by one id."""
    answers = iter([redirect("http://n3:1/v1/x"), problem(503, "overloaded"), json_answer({}), json_answer({})])
    connection, transport = connect(clock, lambda _: next(answers))
    await post(connection, clock)
    await post(connection, clock)
    first, *others, second = request_ids(transport)
    assert others == [first, first]
    assert re.fullmatch(r"[0-9a-f]{8}-1", first)
    assert second == first.replace("-1", "-2")
    other, other_transport = connect(clock, lambda _: json_answer({}))
    await post(other, clock)
    assert not set(request_ids(other_transport)) & {first, second}


async def test_reads_go_to_the_leader_so_that_they_see_what_was_written(clock: Clock) -> None:
    """Reads go to the new leader after the leader was lost; without a leader, any node will do."""
    leader: list[str | None] = ["http://n2:1"]
    gone: set[str] = set()

    def script(request: Request) -> HttpResponse:
        if request.node in gone:
            raise ConnectFailed("refused")
        return json_answer({"leader_url": leader[0]} if request.target == "/v1/cluster" else {})

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=clock)

    async def read(*, anywhere: bool = False) -> list[tuple[str, str]]:
        transport.requests.clear()
        await connection.call("GET", "/v1/x", deadline=Deadline(3_000, clock), anywhere=anywhere)
        return [(request.node, request.target) for request in transport.requests]

    assert await read(anywhere=True) == [("n1", "/v1/x")]
    assert await read() == [("n1", "/v1/cluster"), ("n2", "/v1/x")]
    assert await read() == [("n2", "/v1/x")]
    gone.add("n2")
    leader[0] = "http://n3:1"
    assert await read() == [("n2", "/v1/x"), ("n3", "/v1/cluster"), ("n3", "/v1/x")]
    gone.add("n3")
    leader[0] = None
    assert await read() == [("n3", "/v1/x"), ("n1", "/v1/cluster"), ("n1", "/v1/x")]


async def test_what_any_node_may_do_says_nothing_about_the_leader(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        return json_answer({"leader_url": "http://n2:1"} if request.target == "/v1/cluster" else {"node": request.node})

    transport = ScriptedTransport(script, answers_cluster=True)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=clock)
    await connection.call("POST", "/v1/backups", body=b"{}", anywhere=True)
    await connection.call("GET", "/v1/topics/t")
    asked = [(request.node, request.target) for request in transport.requests if request.target != "/v1/cluster"]
    assert asked == [("n1", "/v1/backups"), ("n2", "/v1/topics/t")]


async def test_a_leader_that_is_gone_costs_no_try(clock: Clock) -> None:
    """Two dead nodes and an election cause many failures before the answer, with tries=1."""
    asked = 0

    def script(request: Request) -> HttpResponse:
        nonlocal asked
        asked += 1
        if request.node != "n2":
            raise ConnectFailed("refused")
        return json_answer({}) if asked > 12 else problem(503, "no_leader", retry_after="1")

    connection, transport = connect(clock, script)
    assert (await post(connection, clock, tries=1)).status == 200
    assert [request.node for request in transport.requests] == ["n1", "n2", "n3", *["n2"] * 10]
    assert "n1" in transport.forgotten


async def test_all_nodes_are_asked_before_the_first_pause(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        if not clock.pauses:
            raise ConnectFailed("refused")
        return json_answer({})

    connection, transport = connect(clock, script)
    await post(connection, clock)
    assert [request.node for request in transport.requests] == ["n1", "n2", "n3", "n1"]
    assert len(clock.pauses) == 1


async def test_nobody_there_is_no_leader_and_nothing_stored(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        raise ConnectFailed("refused")

    connection, _ = connect(clock, script)
    with pytest.raises(NoLeader, match="nothing was stored") as caught:
        await post(connection, clock, budget_ms=1_000)
    assert caught.value.retryable
    assert not caught.value.outcome_unknown
    assert clock.now_s == pytest.approx(101.0)


async def test_redirects_in_a_circle_pause_instead_of_spinning(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        return redirect("http://n2:1/") if request.node == "n1" else redirect("http://n1:1/")

    connection, transport = connect(clock, script)
    with pytest.raises(NoLeader):
        await post(connection, clock, budget_ms=1_000)
    assert len(transport.requests) < 60
    assert clock.now_s == pytest.approx(101.0)


async def test_a_lost_answer_is_tried_again_and_reported_when_tries_are_used_up(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        raise ExchangeFailed("connection closed")

    connection, transport = connect(clock, script)
    with pytest.raises(UnknownOutcome) as caught:
        await post(connection, clock, tries=3)
    assert not isinstance(caught.value, SendTimeout)
    assert caught.value.outcome_unknown
    assert [request.node for request in transport.requests] == ["n1", "n2", "n3"]


async def test_an_unknown_outcome_stays_unknown_whatever_comes_after(clock: Clock) -> None:
    """The first try may be stored; that no leader is found afterwards proves nothing about it."""
    answers = [problem(503, "unknown_outcome")]

    def script(request: Request) -> HttpResponse:
        return answers.pop() if answers else problem(503, "no_leader")

    connection, _ = connect(clock, script)
    with pytest.raises(SendTimeout) as caught:
        await post(connection, clock)
    assert caught.value.outcome_unknown


async def test_a_refusal_after_a_try_that_may_be_stored_is_no_proof(clock: Clock) -> None:
    """The topic may have been deleted between the tries: the first one may have been stored and read all the same."""
    answers = [problem(503, "unknown_outcome")]
    connection, _ = connect(clock, lambda request: answers.pop() if answers else problem(404, "topic_not_found"))
    with pytest.raises(TopicNotFound) as caught:
        await post(connection, clock)
    assert caught.value.outcome_unknown
    assert not caught.value.retryable
    with pytest.raises(TopicNotFound) as certain:
        await post(connection, clock)
    assert not certain.value.outcome_unknown


async def test_a_read_never_has_an_unknown_outcome(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        raise ExchangeFailed("connection closed")

    connection, _ = connect(clock, script)
    with pytest.raises(Exception) as caught:  # noqa: PT011  the type is checked below
        await connection.call("GET", "/v1/x", deadline=Deadline(1_000, clock), tries=2)
    assert not getattr(caught.value, "outcome_unknown", True)


async def test_tries_share_the_budget(clock: Clock) -> None:
    def script(request: Request) -> HttpResponse:
        clock.now_s += request.timeout_s
        raise ExchangeFailed("no answer")

    connection, transport = connect(clock, script)
    with pytest.raises(SendTimeout):
        await post(connection, clock, budget_ms=3_000, tries=3)
    assert [request.timeout_s for request in transport.requests] == pytest.approx([1.0, 1.0, 1.0])
    assert clock.now_s == pytest.approx(103.0)


async def test_a_node_that_hangs_gets_half_of_the_budget_where_tries_are_not_counted(clock: Clock) -> None:
    asked: list[tuple[str, float]] = []

    def hangs(request: Request) -> HttpResponse:
        asked.append((request.node, request.timeout_s))
        if request.node == "n1":
            clock.now_s += request.timeout_s
            raise ExchangeFailed("no answer")
        return json_answer({})

    connection, _ = connect(clock, hangs)
    await connection.call("PUT", "/v1/topics/t", deadline=Deadline(10_000, clock))
    assert asked == [("n1", 5.0), ("n2", 2.5)]
    asked.clear()
    await connection.call("PUT", "/v1/topics/t", deadline=Deadline(10_000, clock), waits_ms=6_000)
    assert asked == [("n2", 8.0)], "what it may wait at the broker comes on top"


async def test_overload_honours_retry_after_and_uses_tries(clock: Clock) -> None:
    connection, transport = connect(clock, lambda request: problem(429, "overloaded", retry_after="1"))
    with pytest.raises(Overloaded) as caught:
        await post(connection, clock, budget_ms=10_000, tries=3)
    assert caught.value.status == 429
    assert len(transport.requests) == 3
    assert clock.pauses[:2] == [1.0, 1.0]


def over_quota(after_ms: object) -> HttpResponse:
    extra = {"quota": "in_bytes_per_s", "limit": 4096, "retry_after_ms": after_ms}
    return problem(429, "quota_exceeded", retry_after="2", **extra)


async def test_a_call_beyond_the_quota_waits_as_it_is_told_and_uses_no_try(clock: Clock) -> None:
    answers = [json_answer({}), *[over_quota(1_500)] * 4]
    connection, transport = connect(clock, lambda request: answers.pop())
    assert (await post(connection, clock, budget_ms=10_000, tries=1)).status == 200
    assert len(transport.requests) == 5
    assert all(1.5 < pause_s < 1.6 for pause_s in clock.pauses)


async def test_a_call_that_stays_beyond_the_quota_says_so_when_its_time_is_over(clock: Clock) -> None:
    connection, transport = connect(clock, lambda request: over_quota(60_000))
    with pytest.raises(QuotaExceeded, match="no success within 10000 ms, nothing was stored: about") as caught:
        await post(connection, clock, budget_ms=10_000)
    assert (caught.value.quota, caught.value.limit, caught.value.retry_after_ms) == ("in_bytes_per_s", 4096, 60_000)
    assert caught.value.retryable
    assert not caught.value.outcome_unknown
    assert isinstance(caught.value, Overloaded)
    assert clock.now_s == pytest.approx(110.0)
    assert len(transport.requests) == 1, "it does not ask before the time that it was told"


@pytest.mark.parametrize("after_ms", [None, "soon", -5, 10**400, True, 1.5])
async def test_a_wait_that_no_node_means_does_no_harm(clock: Clock, after_ms: object) -> None:
    connection, transport = connect(clock, lambda request: over_quota(after_ms))
    with pytest.raises(QuotaExceeded):
        await post(connection, clock, budget_ms=10_000)
    assert 1 <= len(transport.requests) < 500


async def test_a_node_that_never_answers_is_told_with_the_whole_time_and_the_attempts(clock: Clock) -> None:
    def silent(request: Request) -> HttpResponse:
        clock.now_s += 0.5
        raise AnswerTimedOut("no answer within 136 ms")

    connection, transport = connect(clock, silent)
    with pytest.raises(Unavailable, match=r"no_answer: no answer within 2000 ms \(4 attempts\)$"):
        await connection.call("GET", "/v1/x", deadline=Deadline(2_000, clock), anywhere=True)
    assert len(transport.requests) == 4


async def test_an_answer_between_two_silences_is_not_passed_over(clock: Clock) -> None:
    def silent_but_once(request: Request) -> HttpResponse:
        clock.now_s += 0.5
        if clock.now_s < 101.2:
            return problem(503, "overloaded")
        raise AnswerTimedOut("no answer within 136 ms")

    connection, _ = connect(clock, silent_but_once)
    with pytest.raises(Unavailable, match="no_answer: no success within 2000 ms: "):
        await connection.call("GET", "/v1/x", deadline=Deadline(2_000, clock), anywhere=True)


async def test_nothing_is_sent_once_the_budget_is_over(clock: Clock) -> None:
    """There would be no time for an answer, and a request refused each time would end with an unknown outcome."""
    connection, transport = connect(clock, lambda request: problem(507, "disk_full"))
    with pytest.raises(DiskFull) as caught:
        await connection.call("PUT", "/v1/x", body=b"{}", deadline=Deadline(1_000, clock), tries=None)
    assert "nothing was stored: about disk_full" in caught.value.detail
    assert not caught.value.outcome_unknown
    assert clock.now_s == pytest.approx(101.0)
    assert min(request.timeout_s for request in transport.requests) > 0


async def test_an_error_of_the_caller_is_raised_at_once(clock: Clock) -> None:
    connection, transport = connect(clock, lambda request: problem(404, "topic_not_found", topic="t"))
    with pytest.raises(TopicNotFound) as caught:
        await post(connection, clock)
    assert (caught.value.code, caught.value.status, caught.value.extra) == ("topic_not_found", 404, {"topic": "t"})
    assert len(transport.requests) == 1


async def test_calls_that_fail_together_move_on_once(clock: Clock) -> None:
    """Ten calls lose the same node: the connection goes to the next one, not ten nodes further."""
    gate = asyncio.Event()

    async def fail_first(request: Request) -> HttpResponse:
        if request.node == "n1":
            await gate.wait()
            raise ConnectFailed("refused")
        return json_answer({})

    transport = ScriptedTransport(fail_first)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=clock)
    calls = [asyncio.create_task(post(connection, clock)) for _ in range(10)]
    while len(transport.requests) < 10:
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    gate.set()
    await asyncio.gather(*calls)
    assert connection.current == "http://n2:1"
    assert {request.node for request in transport.requests} == {"n1", "n2"}


async def test_a_closed_connection_says_so(clock: Clock) -> None:
    connection, transport = connect(clock, lambda request: json_answer({}))
    connection.close()
    with pytest.raises(Closed):
        await post(connection, clock)
    assert transport.closed


@pytest.mark.parametrize("servers", ["", " , ", "localhost:7081", "tcp://a:1", ["http://"], "http://a:99999"])
def test_bad_server_lists(servers: str | list[str]) -> None:
    with pytest.raises(InvalidRequest, match="servers"):
        parse_servers(servers)


def test_server_lists() -> None:
    urls = [origin.url for origin in parse_servers("http://a:1/, http://b ,https://[::1]:7,http://a:1")]
    assert urls == ["http://a:1", "http://b:80", "https://[::1]:7"]


@pytest.mark.parametrize(("given", "known"), [("5f3a-2b", "5f3a-2b"), ("\x1b[2J", None), ("x" * 65, None), ("", None)])
async def test_an_error_names_the_request_in_the_log_of_the_node(clock: Clock, given: str, known: str | None) -> None:
    """A text that a terminal would take for a command is no request id."""

    def script(request: Request) -> HttpResponse:
        return json_answer({"code": "internal", "detail": "a bug of the broker"}, 500, **{"x-request-id": given})

    connection, _ = connect(clock, script)
    with pytest.raises(BrokerFault) as raised:
        await post(connection, clock, tries=1)
    assert raised.value.request_id == known
    assert raised.value.detail.endswith(f"request {known} in the log of http://n1:1") == (known is not None)
