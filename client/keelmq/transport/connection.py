"""Calls to a cluster: finds the leader, stays with it, and goes on looking inside the caller's time budget.

Which node is asked:

- A write goes to the leader, however slow it is: no other node can take it.
- The leader is looked for at nodes that are not avoided first (node_health.py). A redirect to a node that has just
  failed is followed when the others have been asked too: one of them may know the next leader already.
- The nodes of the cluster may change: those that a node names are known from then on, beside those of `servers`.
- A read that a follower can answer as well goes to the leader, so that it sees what was written before, unless the
  leader is avoided and another node is not. Who wants a follower and can do without asks one (`ask_follower`).
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from keelmq import wire
from keelmq.errors import Closed, InvalidRequest, KeelMQError, NoLeader, Overloaded, Unavailable, error_from_problem
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.call import TRY_TIMEOUT_MIN_MS, Call, Request
from keelmq.transport.http1 import ConnectFailed, ConnectTimedOut, ExchangeFailed, HttpClient, HttpResponse, Origin
from keelmq.transport.node_health import NodeHealth
from keelmq.transport.retry import Clock, Deadline

DEFAULT_SERVERS: Final = ("http://127.0.0.1:7081", "http://127.0.0.1:7082", "http://127.0.0.1:7083")
CONNECT_TIMEOUT_MS: Final = 1_000
CALL_TIMEOUT_MS: Final = 10_000
REDIRECTS_IN_A_ROW_MAX: Final = 4
TIMEOUT_MS_MAX: Final = 3_600_000
TIMEOUT_HEADER: Final = "KeelMQ-Timeout-Ms"
"""For how long the client waits for the answer to a write: a broker that knows it proposes nothing after that."""
NODES_KNOWN_S: Final = 300
"""A connection that is in use asks for the nodes of the cluster anew after so long."""

log = logging.getLogger("keelmq")

T = TypeVar("T")


class Transport(Protocol):
    """What a connection needs of an HTTP client; HttpClient is the real one."""

    async def request(
        self, origin: Origin, method: str, target: str, headers: str, body: bytes, timeout_s: float
    ) -> HttpResponse: ...

    def forget(self, origin: Origin) -> None: ...

    def close(self) -> None: ...


def parse_servers(servers: str | Sequence[str]) -> list[Origin]:
    """Origins of `servers` (URLs, or one string with commas). Raises InvalidRequest."""
    urls = [url.strip() for url in servers.split(",")] if isinstance(servers, str) else list(servers)
    try:
        origins = [Origin.parse(url) for url in urls if url]
    except ValueError as exc:
        raise InvalidRequest("invalid_request", f"servers: {exc}") from exc
    if not origins:
        raise InvalidRequest("invalid_request", "servers: at least one URL is needed")
    return list(dict.fromkeys(origins))


class Unfinished(NamedTuple):
    """What an answer left to be done, by another request with `body`, and the first reason why it is."""

    error: KeelMQError
    body: bytes


IsUnfinished = Callable[[HttpResponse, bool], Unfinished | None]
"""Is told of a 2xx response, and whether an earlier try may have taken effect; None when it is complete."""


class _NotTheLeader(Exception):
    """A node that was asked for the leader does not say that there is one, is not it, or is not in the cluster."""


class Connection:
    """Calls to one cluster. Share one between producers and consumers of an event loop, or let each make its own.

    `servers` are the HTTP URLs of any nodes of the cluster, best written as the nodes advertise them: a node under two
    names is two nodes here. `avoid_slow_nodes` is the latency-fault tolerance of node_health.py. Not safe across
    threads or event loops.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = DEFAULT_SERVERS,
        *,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
        avoid_slow_nodes: bool = True,
        tls: ssl.SSLContext | None = None,
        transport: Transport | None = None,
        rng: Callable[[], float] = random.random,
        clock: Clock = time.monotonic,
    ) -> None:
        self._servers = parse_servers(servers)
        self._nodes = self._servers
        self._configuration_index = 0  # of the nodes that were learnt
        self._asked_nodes_s = clock()
        self._asking: asyncio.Task[None] | None = None
        self._transport = transport or HttpClient(connect_timeout_ms=CONNECT_TIMEOUT_MS, tls=tls)
        self._call_timeout_ms = call_timeout_ms
        self._rng = rng
        self._clock = clock
        self._health = NodeHealth(enabled=avoid_slow_nodes, clock=clock)
        self._current = self._nodes[int(rng() * len(self._nodes)) % len(self._nodes)]
        self._at_leader = False
        self._closed = False

    @property
    def current(self) -> str:
        """URL of the node that calls go to first: the leader, once it is known."""
        return self._current.url

    async def call(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        content_type: str = wire.JSON,
        accept: str = wire.JSON,
        deadline: Deadline | None = None,
        tries: int | None = None,
        anywhere: bool = False,
        leader_only: bool = False,
        follower_ok: bool = False,
        waits_ms: int = 0,
        unfinished: IsUnfinished | None = None,
        answers: AnswerTime | None = None,
    ) -> HttpResponse:
        """The 2xx response of the cluster; of its leader if there is one, so that reads see what was written before.

        Goes on until the deadline (`call_timeout_ms` from now when None) or until `tries` requests have been acted on
        without success; `anywhere` takes a read from the first node that answers, `leader_only` takes it from no node
        that does not say that it is the leader, for reads where "not there" must not mean "not there yet", and
        `follower_ok` takes it from another node while the leader is avoided. A request that may wait at the broker
        says for how long (`waits_ms`): so much is no sign of a slow node. Raises the KeelMQError of the broker's
        problem; NoLeader when nobody could be asked; UnknownOutcome or SendTimeout when an earlier try may have taken
        effect and no later one found out. A problem that ends the call after such a try is raised as it is, with
        `outcome_unknown` set.

        A response that is complete only in parts is the end of a try too: what `unfinished` says is left of it is tried
        again, as if its error had been the answer. `answers` is told how long each try took to be answered.
        """
        headers = f"Accept: {accept}\r\n"
        if body or method != "GET":  # the broker wants one on every write: a web page could not send it
            headers += f"Content-Type: {content_type}\r\n"
        request = Request(method, target, headers, body, anywhere, leader_only, follower_ok, waits_ms)
        call = Call(request, deadline or Deadline(self._call_timeout_ms), tries, self._rng, answers)
        try:
            return await self._until_answered(call, unfinished)
        except KeelMQError as exc:
            exc.outcome_unknown = exc.outcome_unknown or call.stored_perhaps
            raise

    async def _until_answered(self, call: Call, unfinished: IsUnfinished | None) -> HttpResponse:
        while True:
            if self._closed:
                raise Closed("closed", "this connection was closed")
            node = self._choose(call)
            self._ask_for_nodes_sometimes(node)
            pause_s: float | None = None
            timeout_s = call.try_timeout_s()
            try:
                node = await self._by_way_of(node, call)
                timeout_s = call.try_timeout_s()
                response = await self._ask(node, call.request, timeout_s, call.answers)
            except (ConnectFailed, _NotTheLeader) as exc:
                if call.last_error is None or call.deadline.remaining_s() > 0:  # a cut-off attempt tells nothing new
                    call.last_error = _not_reached(exc, timeout_s)
                pause_s = self._give_up_on(node, call)
            except ExchangeFailed as exc:
                call.last_error = Unavailable("no_answer", f"{node.url}: {exc}")
                call.stored_perhaps = call.stored_perhaps or call.request.writes
                call.used_a_try()
                # With less time it was our haste: the node is where the next calls go, over the connections it has.
                pause_s = None if _is_haste(timeout_s) else self._give_up_on(node, call)
            else:
                if response.status < 300:
                    self._took(node, call)
                    rest = None if unfinished is None else unfinished(response, call.stored_perhaps)
                    if rest is None:
                        return response
                    call.request = call.request._replace(body=rest.body)
                    pause_s = self._refused(node, rest.error, response, call)
                else:
                    pause_s = self._not_yet(node, response, call)
            if not call.over() and pause_s:
                await asyncio.sleep(min(pause_s, call.deadline.remaining_s()))
            if call.over():
                raise call.final_error()

    async def call_for(self, kind: type[T], method: str, target: str, *, body: Any = None, **options: Any) -> T:
        """Like `call`, with `body` (a struct or plain data) sent as JSON and the answer decoded as `kind`."""
        data = b"" if body is None else wire.encode_json(body)
        response = await self.call(method, target, body=data, **options)
        return wire.decode(kind, response.body, response.headers.get("content-type", ""))

    async def ask_follower(self, number: int, target: str, *, accept: str, timeout_ms: int) -> HttpResponse | None:
        """A follower's 2xx response to a GET; the same `number` asks the same one, different ones different ones.

        One request to one node that is not avoided, within `timeout_ms`; None if that comes to nothing, or if there is
        no such node besides the leader. Its word may be behind the leader's.
        """
        others = [node for node in self._nodes if node != self._current and not self._health.is_avoided(node)]
        if self._closed or not self._at_leader or not others:
            return None
        node = others[number % len(others)]
        request = Request("GET", target, f"Accept: {accept}\r\n", b"", True, False, True, 0)
        try:
            response = await self._ask(node, request, timeout_ms / 1000)
        except (ConnectFailed, ExchangeFailed) as exc:
            log.debug("%s, a follower, does not answer: %s", node.url, exc)
            self._transport.forget(node)
            return None
        return response if response.status < 300 else None

    def close(self) -> None:
        """Close all connections; later calls raise Closed."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
        self._transport.close()

    def _ask_for_nodes_sometimes(self, node: Origin) -> None:
        """Beside the call: nobody waits for it, and it does not matter if it fails."""
        if self._clock() - self._asked_nodes_s >= NODES_KNOWN_S and (self._asking is None or self._asking.done()):
            self._asked_nodes_s = self._clock()
            self._asking = asyncio.create_task(self._ask_for_nodes(node))

    async def _ask_for_nodes(self, node: Origin) -> None:
        try:
            response = await self._transport.request(
                node, "GET", _WHO_LEADS.target, _WHO_LEADS.headers, b"", CONNECT_TIMEOUT_MS / 1000
            )
            if response.status == 200:
                self._learn(wire.decode(wire.LeaderView, response.body, response.headers.get("content-type", "")))
        except (ConnectFailed, ExchangeFailed, KeelMQError) as exc:
            log.debug("%s does not name the nodes of the cluster: %s", node.url, exc)

    def _learn(self, view: wire.LeaderView) -> None:
        """The nodes of the cluster; those that were given stay, in case they are other names or come back."""
        named: list[Origin] = []
        for each in view.nodes:
            with contextlib.suppress(ValueError):
                named.append(Origin.parse(each.url))
        if not named or view.removed:
            return
        if view.configuration_index >= self._configuration_index:
            self._configuration_index = view.configuration_index
            self._nodes = list(dict.fromkeys([*self._servers, *named]))
        else:
            # Of a node that is behind, which must not make us forget who came later. Or of a cluster that was begun
            # anew under the same addresses, as a rule with the same id, whose nodes must be found all the same: so they
            # are added. Those that are gone cost a failed connect until a view as late as ours names who is left.
            self._nodes = list(dict.fromkeys([*self._nodes, *named]))

    def _choose(self, call: Call) -> Origin:
        """Where the next request of the call goes, or its question for the leader."""
        node, call.next_node = call.next_node, None
        if node is not None:
            return node
        request = call.request
        bound = self._at_leader and not (request.anywhere or request.follower_ok)
        if bound or not self._health.is_avoided(self._current):
            return self._current
        return self._candidate(call, max(self._place(self._current), 0))

    def _place(self, node: Origin) -> int:
        """Of a node among the known ones; -1 for one that only a redirect named."""
        return self._nodes.index(node) if node in self._nodes else -1

    def _candidate(self, call: Call, first: int) -> Origin:
        """From place `first` on, the first node that is not avoided; if possible one not yet asked in this round."""
        candidates = self._health.candidates(self._nodes[first:] + self._nodes[:first])
        return next((node for node in candidates if node not in call.asked), candidates[0])

    async def _by_way_of(self, node: Origin, call: Call) -> Origin:
        """The node for the request, found by way of `node`: itself, or the leader that it names."""
        request = call.request
        if request.leader_only:
            return await self._confirmed_leader(node, call)
        if self._at_leader or request.anywhere or (request.writes and not request.waits_ms):
            return node  # one that waits is worth a question: nobody can tell a node that hangs from one that waits
        leader = await self._look_for_leader(node, call)
        if leader is None or (request.follower_ok and self._health.is_avoided(leader)):
            return node  # knowing no leader, its reads are its best
        if leader != node:
            call.asked.add(node)  # if that leader cannot be reached, it is the others' turn
        return leader

    async def _ask(
        self, node: Origin, request: Request, timeout_s: float, answers: AnswerTime | None = None
    ) -> HttpResponse:
        """The node's answer, whatever it is; how it behaves is remembered."""
        headers = request.headers
        if request.writes:
            way_s = 0.0 if answers is None else answers.least_s
            headers += f"{TIMEOUT_HEADER}: {min(max(int((timeout_s - way_s) * 1000), 1), TIMEOUT_MS_MAX)}\r\n"
        begun_s = self._clock()
        try:
            response = await self._transport.request(
                node, request.method, request.target, headers, request.body, timeout_s
            )
        except (ConnectFailed, ExchangeFailed) as exc:
            if not _is_haste(timeout_s):
                self._health.failed(node)
            if answers is not None and isinstance(exc, ExchangeFailed):
                answers.lost(self._clock() - begun_s)
            raise
        took_s = self._clock() - begun_s
        self._health.answered(node, round(took_s * 1000, 3) - request.waits_ms)
        if answers is not None and response.status < 300:
            answers.took(took_s)
        return response

    async def _confirmed_leader(self, node: Origin, call: Call) -> Origin:
        """The leader by its own word, found by way of `node`; raises _NotTheLeader."""
        leader = await self._look_for_leader(node, call)
        if leader is None:
            raise _NotTheLeader(f"{node.url} knows no leader")
        if leader != node and await self._look_for_leader(leader, call) != leader:
            raise _NotTheLeader(f"{node.url} names {leader.url} as the leader, which does not say so itself")
        return leader

    async def _look_for_leader(self, node: Origin, call: Call) -> Origin | None:
        """The leader that `node` knows of. A node that hangs gets its share of the time, so that others are asked."""
        timeout_s = min(call.try_timeout_s(), call.share_s(len(self._nodes)))
        response = await self._ask(node, _WHO_LEADS, timeout_s)
        if response.status != 200:
            return None
        view = wire.decode(wire.LeaderView, response.body, response.headers.get("content-type", ""))
        self._learn(view)
        if view.removed:
            raise _NotTheLeader(f"{node.url} was removed from the cluster")
        if view.leader_url is None:
            return None
        try:
            leader = Origin.parse(view.leader_url)
        except ValueError as exc:
            log.debug("%s names %r as the leader: %s", node.url, view.leader_url, exc)
            return None
        if self._current == node:
            self._current, self._at_leader = leader, True
        return leader

    def _took(self, node: Origin, call: Call) -> None:
        """A write that was taken shows who leads."""
        if call.request.writes and (self._current == node or not self._at_leader):
            self._current, self._at_leader = node, True

    def _not_yet(self, node: Origin, response: HttpResponse, call: Call) -> float | None:
        """What a redirect or a problem means for the call: the pause before the next try, or a raised error."""
        if response.status in (307, 308):
            return self._follow(node, response, call)
        return self._refused(node, error_from_problem(response.status, _problem(response)), response, call)

    def _refused(self, node: Origin, error: KeelMQError, response: HttpResponse, call: Call) -> float | None:
        """The pause before the next try after an error that the node answered with; raises one that is final."""
        if isinstance(error, NoLeader):
            call.last_error = error
            return self._give_up_on(node, call)
        if not error.retryable:
            raise error
        call.last_error = error
        call.used_a_try()
        call.stored_perhaps = call.stored_perhaps or (error.outcome_unknown and call.request.writes)
        pause_s = call.backoff.next_s()
        return max(pause_s, _retry_after_s(response)) if isinstance(error, Overloaded) else pause_s

    def _follow(self, node: Origin, response: HttpResponse, call: Call) -> float | None:
        location = response.headers.get("location", "")
        try:
            leader = Origin.parse(location)
        except ValueError:  # others may know it by another address, or be it
            call.last_error = NoLeader("no_leader", f"{node.url} redirects to {location!r}")
            return self._give_up_on(node, call)
        call.redirects += 1
        if leader not in self._nodes:  # one that was added: it names the others as soon as there is time
            self._nodes = [*self._nodes, leader]
            self._asked_nodes_s = self._clock() - NODES_KNOWN_S
        # Not NoLeader: there is one, unless nodes keep pointing at each other.
        kind, code = (NoLeader, "no_leader") if call.redirects >= REDIRECTS_IN_A_ROW_MAX else (Unavailable, "not_sent")
        call.last_error = kind(code, f"{node.url} names {leader.url} as the leader")
        call.asked.add(node)
        if self._health.is_failed(leader) and not self._round_is_over(call):
            call.next_node = self._candidate(call, self._place(node) + 1)
            return None
        self._current, self._at_leader = leader, True
        call.next_node = leader
        # During an election nodes may point at each other: then wait instead of running in a circle.
        return call.backoff.next_s() if call.redirects % REDIRECTS_IN_A_ROW_MAX == 0 else None

    def _give_up_on(self, node: Origin, call: Call) -> float | None:
        """Go to another node; the pause that is due when all of them have been asked."""
        self._transport.forget(node)
        call.asked.add(node)
        if self._current == node:  # otherwise another call has moved on already
            self._current, self._at_leader = self._candidate(call, self._place(node) + 1), False
            log.debug("going from %s to %s", node.url, self._current.url)
        if not self._round_is_over(call):
            return None
        call.asked.clear()
        return call.backoff.next_s()

    def _round_is_over(self, call: Call) -> bool:
        """Whether there is nobody left to ask; nodes that are avoided are left out, unless all are."""
        return call.asked.issuperset(self._health.candidates(self._nodes))


_WHO_LEADS: Final = Request("GET", "/v1/cluster", f"Accept: {wire.JSON}\r\n", b"", False, False, False, 0)


def _is_haste(timeout_s: float) -> bool:
    """Whether a failure within so little time says nothing about the node."""
    return timeout_s * 1000 < TRY_TIMEOUT_MIN_MS


def _not_reached(error: Exception, timeout_s: float) -> KeelMQError:
    if isinstance(error, ConnectTimedOut) and _is_haste(timeout_s):
        return Unavailable("not_sent", f"{error}; no connection within the {timeout_s * 1000:.0f} ms that were left")
    return NoLeader("no_leader", str(error))


def _problem(response: HttpResponse) -> dict[str, Any]:
    try:
        problem = msgspec.json.decode(response.body)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def _retry_after_s(response: HttpResponse) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else 0.0
