"""Calls to a cluster: finds the leader, stays with it, and keeps looking within the caller's time budget.

Choice of the node:

- A write goes to the leader, even if it is slow: no other node can take it.
- The leader is looked for at nodes that are not avoided first (node_health.py). A redirect to a node that has just
  failed is followed only after the other nodes have been asked: one of them may already know the next leader.
- The nodes of the cluster may change: nodes named by a node are known from then on, besides those in `servers`.
- A read that a follower can answer goes to the leader too, so that it sees earlier writes, unless the leader is
  avoided and another node is not. `ask_follower` asks a follower, for callers that can do without an answer.
"""

import asyncio
import itertools
import random
import secrets
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from keelmq import wire
from keelmq.errors import Closed, KeelMQError, NoLeader, Overloaded, QuotaExceeded, Unavailable
from keelmq.limits import TIMEOUT_MS_MAX
from keelmq.line_log import log
from keelmq.tracing import trace_header
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.answers import error_of, retry_after_s
from keelmq.transport.call import Call, Request, is_haste, not_reached
from keelmq.transport.credentials import Credentials, TokenSource
from keelmq.transport.http1 import (
    AnswerTimedOut,
    ConnectFailed,
    ExchangeFailed,
    HttpClient,
    HttpResponse,
    NotTrusted,
    Origin,
)
from keelmq.transport.known_nodes import DEFAULT_SERVERS, KnownNodes, named_by, parse_servers
from keelmq.transport.node_health import NodeHealth
from keelmq.transport.retry import Clock, Deadline
from keelmq.transport.tls import Tls, TlsFiles

CONNECT_TIMEOUT_MS: Final = 1_000
CALL_TIMEOUT_MS: Final = 10_000
REDIRECTS_IN_A_ROW_MAX: Final = 4
TIMEOUT_HEADER: Final = "KeelMQ-Timeout-Ms"
"""Header with the time in ms that the client waits for the answer to a write; the broker proposes nothing after it."""
REQUEST_ID_HEADER: Final = "X-Request-Id"
"""Header with the id by which nodes name the request in their log and their audit; the same on every try."""
NODES_KNOWN_S: Final = 300
"""Seconds after which a connection in use asks for the nodes of the cluster again."""

T = TypeVar("T")


class Transport(Protocol):
    """The HTTP client interface that a connection needs; HttpClient is the production implementation."""

    async def request(
        self, origin: Origin, method: str, target: str, headers: str, body: bytes, timeout_s: float
    ) -> HttpResponse: ...

    def forget(self, origin: Origin) -> None: ...

    def close(self) -> None: ...


class Unfinished(NamedTuple):
    """The rest of a partly successful request: the `body` of the next request, and the first error that requires it."""

    error: KeelMQError
    body: bytes


IsUnfinished = Callable[[HttpResponse, bool], Unfinished | None]
"""Receives a 2xx response and whether an earlier try may have taken effect; returns None when the call is complete."""


class _NotTheLeader(Exception):
    """The asked `node` does not answer, names no leader, is not the leader that it was named as, or was removed."""

    def __init__(self, node: Origin, why: str) -> None:
        super().__init__(why)
        self.node = node


class Connection:
    """Calls one cluster. Producers and consumers of an event loop may share a connection or each make their own.

    `servers` are HTTP URLs of any nodes of the cluster, preferably as the nodes advertise them: a node under two names
    counts as two nodes. `tls` is for https URLs (transport/tls.py), `token` is a bearer token or a function that
    returns it (transport/credentials.py); both are by default as the environment says. `avoid_slow_nodes` enables the
    latency-fault tolerance of node_health.py. A connection is not safe across threads or event loops.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = DEFAULT_SERVERS,
        *,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
        avoid_slow_nodes: bool = True,
        tls: Tls | ssl.SSLContext | None = None,
        token: TokenSource | Credentials | None = None,
        transport: Transport | None = None,
        rng: Callable[[], float] = random.random,
        clock: Clock = time.monotonic,
    ) -> None:
        origins = parse_servers(servers)
        self._credentials = token if isinstance(token, Credentials) else Credentials(token, origins)
        self._known = KnownNodes(origins)
        self._asked_nodes_s = clock()
        self._asking: asyncio.Task[None] | None = None
        self._tls = tls
        if transport is None:
            files = TlsFiles(tls)
            if any(origin.secure for origin in origins):
                files.context()  # files that cannot be used are an error of the caller
            transport = HttpClient(connect_timeout_ms=CONNECT_TIMEOUT_MS, tls=files)
        self._transport = transport
        self._call_timeout_ms = call_timeout_ms
        self._rng = rng
        self._clock = clock
        self._health = NodeHealth(enabled=avoid_slow_nodes, clock=clock)
        self._current = origins[int(rng() * len(origins)) % len(origins)]
        self._at_leader = False
        self._closed = False
        self._ids = f"{secrets.token_hex(4)}-"
        self._calls = itertools.count(1)

    def beside(self, url: str) -> "Connection":
        """Return a connection with the same TLS and credentials to the node at `url` alone. The caller closes it."""
        return Connection(url, tls=self._tls, token=self._credentials)

    @property
    def current(self) -> str:
        """URL of the node that calls go to first, which is the leader once it is known."""
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
        leader_first: bool = False,
        follower_ok: bool = False,
        waits_ms: int = 0,
        once: bool = False,
        unfinished: IsUnfinished | None = None,
        answers: AnswerTime | None = None,
    ) -> HttpResponse:
        """Send a request and return the 2xx response of the leader if there is one, so that reads see earlier writes.

        Tries until the deadline (`call_timeout_ms` from now if None) or until `tries` requests have been acted on
        without success. Reads with `anywhere` take the first node that answers; with `leader_only` only a node that
        says that it is the leader, for reads where "not there" must not mean "not there yet"; with `follower_ok`
        another node while the leader is avoided. With `leader_first` a leader that is not known yet is asked whether it
        leads before it gets the request, so that a node that hangs does not receive the only try. `waits_ms` is how
        long the request may wait at the broker, which is no sign of a slow node. With `once` a try that may have taken
        effect ends the call, for a write that does more when it is repeated. `unfinished` tells what a 2xx response
        left undone: such a response ends the try, and the rest is tried again as if its error had been the answer.
        `answers` records how long each try took to be answered.

        Raises the KeelMQError of the broker's problem; NoLeader when no node could be asked; UnknownOutcome or
        SendTimeout when an earlier try may have taken effect and no later one found out. A problem that ends the call
        after such a try is raised as it is, with `outcome_unknown` set.
        """
        headers = f"Accept: {accept}\r\n{REQUEST_ID_HEADER}: {self._ids}{next(self._calls)}\r\n"
        if body or method != "GET":  # the broker requires it on every write, because a web page cannot send this type
            headers += f"Content-Type: {content_type}\r\n"
        request = Request(
            method, target, headers, body, anywhere, leader_only, leader_first, follower_ok, waits_ms, once
        )
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
                if isinstance(exc, NotTrusted) and call.distrust(exc) >= set(self._known.all):
                    raise not_reached(exc, timeout_s) from exc  # waiting does not make them trusted
                if call.last_error is None or call.deadline.remaining_s() > 0:  # a cut-off attempt tells nothing new
                    call.last_error = not_reached(exc, timeout_s)
                pause_s = self._give_up_on(exc.node if isinstance(exc, _NotTheLeader) else node, call)
            except ExchangeFailed as exc:
                call.last_error = Unavailable("no_answer", f"{node.url}: {exc}")
                call.stored_perhaps = call.stored_perhaps or call.request.writes
                call.used_a_try()
                call.unanswered += isinstance(exc, AnswerTimedOut)
                # A short timeout says nothing about the node: it keeps its connections and receives the next calls.
                pause_s = None if is_haste(timeout_s) else self._give_up_on(node, call)
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

    async def call_for(
        self, kind: type[T], method: str, target: str, *, body: msgspec.Struct | None = None, **options: Any
    ) -> T:
        """Like `call`, but send `body` as JSON and decode the answer as `kind`."""
        data = b"" if body is None else wire.encode_json(body)
        response = await self.call(method, target, body=data, **options)
        return wire.decode(kind, response.body, response.headers.get("content-type", ""))

    async def ask_follower(self, number: int, target: str, *, accept: str, timeout_ms: int) -> HttpResponse | None:
        """Return a follower's 2xx response to a GET; the same `number` selects the same follower.

        Sends one request to one node that is not avoided, within `timeout_ms`. Returns None if it fails, or if no such
        node exists besides the leader. The response may lag behind the leader.
        """
        others = [node for node in self._known.all if node != self._current and not self._health.is_avoided(node)]
        if self._closed or not self._at_leader or not others:
            return None
        node = others[number % len(others)]
        request = Request("GET", target, f"Accept: {accept}\r\n", b"", True, False, False, True, 0)
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
        """Refresh the known nodes in the background: no caller waits for it, and a failure does not matter."""
        if self._clock() - self._asked_nodes_s >= NODES_KNOWN_S and (self._asking is None or self._asking.done()):
            self._asked_nodes_s = self._clock()
            self._asking = asyncio.create_task(self._ask_for_nodes(node))

    async def _ask_for_nodes(self, node: Origin) -> None:
        try:
            response = await self._transport.request(
                node,
                "GET",
                _WHO_LEADS.target,
                _WHO_LEADS.headers + self._credentials.header(node),
                b"",
                CONNECT_TIMEOUT_MS / 1000,
            )
            if response.status == 200:
                view = wire.decode(wire.LeaderView, response.body, response.headers.get("content-type", ""))
                self._known.learn(node, view)
        except (ConnectFailed, ExchangeFailed, KeelMQError) as exc:
            log.debug("%s does not name the nodes of the cluster: %s", node.url, exc)

    def _choose(self, call: Call) -> Origin:
        """Return the node that receives the next request of the call, or the question for the leader."""
        node, call.next_node = call.next_node, None
        if node is not None:
            return node
        request = call.request
        bound = self._at_leader and not (request.anywhere or request.follower_ok)
        if bound or not self._health.is_avoided(self._current):
            return self._current
        return self._candidate(call, max(self._known.place(self._current), 0))

    def _candidate(self, call: Call, first: int) -> Origin:
        """Return a node that is not avoided, looking from index `first` on; preferably one not asked in this round."""
        candidates = self._health.candidates(self._known.all[first:] + self._known.all[:first])
        return next((node for node in candidates if node not in call.asked), candidates[0])

    async def _by_way_of(self, node: Origin, call: Call) -> Origin:
        """Return the node for the request: `node` itself, or the leader that it names."""
        request = call.request
        if request.leader_only or (request.leader_first and not self._at_leader):
            return await self._confirmed_leader(node, call)
        if self._at_leader or request.anywhere or (request.writes and not request.waits_ms):
            return node  # requests that wait are worth a question, because a waiting node looks like a hanging one
        leader = await self._look_for_leader(node, call)
        if leader is None or (request.follower_ok and self._health.is_avoided(leader)):
            return node  # without a known leader, its own reads are the best available
        if leader != node:
            call.asked.add(node)  # if that leader cannot be reached, the other nodes are next
        return leader

    async def _ask(
        self, node: Origin, request: Request, timeout_s: float, answers: AnswerTime | None = None
    ) -> HttpResponse:
        """Send the request to the node, record its latency or failure, and return its answer, whatever the status."""
        headers = request.headers + self._credentials.header(node) + trace_header()
        if request.writes:
            way_s = 0.0 if answers is None else answers.least_s
            headers += f"{TIMEOUT_HEADER}: {min(max(int((timeout_s - way_s) * 1000), 1), TIMEOUT_MS_MAX)}\r\n"
        begun_s = self._clock()
        try:
            response = await self._transport.request(
                node, request.method, request.target, headers, request.body, timeout_s
            )
        except (ConnectFailed, ExchangeFailed) as exc:
            if not is_haste(timeout_s):
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
        """Return the leader found through `node`, confirmed by its own answer. Raises _NotTheLeader."""
        leader = await self._look_for_leader(node, call)
        if leader is None:
            raise _NotTheLeader(node, f"{node.url} knows no leader")
        if leader != node:
            call.asked.add(node)  # if that leader does not answer, the other nodes are next
            if await self._look_for_leader(leader, call) != leader:
                raise _NotTheLeader(
                    leader, f"{node.url} names {leader.url} as the leader, which does not say so itself"
                )
        return leader

    async def _look_for_leader(self, node: Origin, call: Call) -> Origin | None:
        """Return the leader that `node` knows. A hanging node uses up only its share of the time that is left.

        Raises _NotTheLeader for it: the question changes nothing, so a lost answer is no try."""
        timeout_s = min(call.try_timeout_s(), call.share_s(len(self._known.all)))
        try:
            response = await self._ask(node, _WHO_LEADS, timeout_s)
        except ExchangeFailed as exc:
            raise _NotTheLeader(node, f"{node.url}: {exc}") from exc
        if response.status in (401, 403):
            raise error_of(response, node, self._credentials)
        if response.status != 200:
            return None
        view = wire.decode(wire.LeaderView, response.body, response.headers.get("content-type", ""))
        self._known.learn(node, view)
        if view.removed:
            raise _NotTheLeader(node, f"{node.url} was removed from the cluster")
        if view.leader_url is None:
            return None
        try:
            leader = named_by(node, view.leader_url)
        except ValueError as exc:
            log.debug("%s names %r as the leader: %s", node.url, view.leader_url, exc)
            return None
        if self._current == node:
            self._current, self._at_leader = leader, True
        return leader

    def _took(self, node: Origin, call: Call) -> None:
        """Record the node as the leader if it accepted a write that only the leader takes."""
        if call.request.writes and not call.request.anywhere and (self._current == node or not self._at_leader):
            self._current, self._at_leader = node, True

    def _not_yet(self, node: Origin, response: HttpResponse, call: Call) -> float | None:
        """Handle a redirect or a problem: return the pause before the next try, or raise the error."""
        if response.status in (307, 308):
            return self._follow(node, response, call)
        return self._refused(node, error_of(response, node, self._credentials), response, call)

    def _refused(self, node: Origin, error: KeelMQError, response: HttpResponse, call: Call) -> float | None:
        """Return the pause before the next try after the node answered with an error; raises a final error."""
        if isinstance(error, NoLeader):
            call.last_error = error
            return self._give_up_on(node, call)
        if not error.retryable:
            raise error
        call.last_error = error
        if isinstance(error, QuotaExceeded):  # nobody has acted on it
            wait_s = error.retry_after_ms / 1000 or retry_after_s(response)
            return wait_s + call.backoff.next_s()  # apart from others that were told the same
        call.used_a_try()
        call.stored_perhaps = call.stored_perhaps or (error.outcome_unknown and call.request.writes)
        pause_s = call.backoff.next_s()
        return max(pause_s, retry_after_s(response)) if isinstance(error, Overloaded) else pause_s

    def _follow(self, node: Origin, response: HttpResponse, call: Call) -> float | None:
        location = response.headers.get("location", "")
        try:
            leader = named_by(node, location)
        except ValueError:  # other nodes may know the leader by another address, or be the leader
            call.last_error = NoLeader("no_leader", f"{node.url} redirects to {location!r}")
            return self._give_up_on(node, call)
        call.redirects += 1
        if self._known.add(leader):  # a newly added node: ask for all nodes soon
            self._asked_nodes_s = self._clock() - NODES_KNOWN_S
        # Not NoLeader: there is one, unless nodes keep pointing at each other.
        kind, code = (NoLeader, "no_leader") if call.redirects >= REDIRECTS_IN_A_ROW_MAX else (Unavailable, "not_sent")
        call.last_error = kind(code, f"{node.url} names {leader.url} as the leader")
        call.asked.add(node)
        if self._health.is_failed(leader) and not self._round_is_over(call):
            call.next_node = self._candidate(call, self._known.place(node) + 1)
            return None
        self._current, self._at_leader = leader, True
        call.next_node = leader
        # During an election nodes may point at each other: wait then, instead of running in a circle.
        return call.backoff.next_s() if call.redirects % REDIRECTS_IN_A_ROW_MAX == 0 else None

    def _give_up_on(self, node: Origin, call: Call) -> float | None:
        """Move to another node; return the pause that is due when all nodes have been asked."""
        self._transport.forget(node)
        call.asked.add(node)
        if self._current == node:  # otherwise another call has moved on already
            self._current, self._at_leader = self._candidate(call, self._known.place(node) + 1), False
            log.debug("going from %s to %s", node.url, self._current.url)
        if not self._round_is_over(call):
            return None
        call.asked.clear()
        return call.backoff.next_s()

    def _round_is_over(self, call: Call) -> bool:
        """Return whether all nodes have been asked; avoided nodes are left out, unless all are avoided."""
        return call.asked.issuperset(self._health.candidates(self._known.all))


_WHO_LEADS: Final = Request("GET", "/v1/cluster", f"Accept: {wire.JSON}\r\n", b"", False, False, False, False, 0)
