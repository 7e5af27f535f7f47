"""Clients of the cluster: they find the leader, follow redirects, time out, and send again with the same id."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .checkers import Violation
from .wire import ClientNetwork, Connection, OnLeft, OnReply, Reply, Request
from .world import World

ATTEMPTS_MAX = 12
TIMEOUT_US_MIN, TIMEOUT_US_MAX = 300_000, 1_500_000
RETRY_US_MIN, RETRY_US_MAX = 5_000, 150_000
LOST_LEADER_PROBABILITY = 0.05  # a client that asks just anybody

JSON, MSGPACK = "application/json", "application/msgpack"
RETRIED = frozenset({408, 429, 503, 507})


class Answer:
    """The cluster's final answer: neither a redirect nor a request to try again."""

    def __init__(self, node_id: int, status: int, body: Any) -> None:
        self.node_id, self.status = node_id, status
        self.body: Any = body

    @property
    def ok(self) -> bool:
        return self.status < 300

    @property
    def code(self) -> str:
        return "" if self.ok else str(self.body["code"])

    def __repr__(self) -> str:
        return f"{self.status} {self.body}"


OnAnswer = Callable[[Answer | None], None]


def decode_body(reply: Reply) -> Any:
    if not reply.body:
        return None
    decoder = msgspec.msgpack if reply.headers.get("content-type") == MSGPACK else msgspec.json
    return decoder.decode(reply.body)


def json_request(method: str, target: str, body: Any = None, on_left: OnLeft | None = None) -> Request:
    """Return a JSON request. A write names its content type even when it has no body."""
    headers = {"Content-Type": JSON} if method in ("POST", "PUT") else {}
    return Request(method, target, b"" if body is None else msgspec.json.encode(body), headers, on_left)


def msgpack_request(method: str, target: str, body: Any) -> Request:
    return Request(method, target, msgspec.msgpack.encode(body), {"Content-Type": MSGPACK, "Accept": MSGPACK})


class _Call:
    def __init__(self, request: Request, on_answer: OnAnswer, attempts_max: int, timeout_us: int | None) -> None:
        self.request, self.on_answer = request, on_answer
        self.attempts_max, self.timeout_us = attempts_max, timeout_us
        self.attempts = 0
        self.closed = False
        self.connection: Connection | None = None


class Clients:
    """Carry requests to the node believed to lead, or to a given one."""

    def __init__(self, world: World, network: ClientNetwork, node_ids: Sequence[int]) -> None:
        self._world, self.network, self._node_ids = world, network, tuple(node_ids)
        self._random = world.random_of("clients")
        self._leader_hint: int | None = None
        self.open_requests = 0
        """Number of requests that `call` carries."""

    def call(self, request: Request, on_answer: OnAnswer) -> None:
        """Send the request and follow redirects and retries. `on_answer` is called once, with the cluster's final
        answer, or with None when there was none in time.
        """
        self.open_requests += 1

        def close(answer: Answer | None) -> None:
            self.open_requests -= 1
            on_answer(answer)

        self._attempt(_Call(request, close, ATTEMPTS_MAX, None))

    def try_once(self, request: Request, on_answer: OnAnswer, *, timeout_us: int) -> None:
        """Send the request as `call` does, but follow only redirects."""
        self._attempt(_Call(request, on_answer, 1, timeout_us))

    def ask(self, node_id: int, request: Request, on_reply: OnReply, *, timeout_us: int) -> None:
        """Send one request to one node. `on_reply` is called once, with the node's reply, or with None when there was
        none in time.
        """
        over = False

        def once(reply: Reply | None) -> None:
            nonlocal over
            if not over:
                over = True
                self._look_at(request, reply)
                on_reply(reply)

        connection = self.network.send(node_id, request, once)

        def give_up() -> None:
            if not over:
                connection.abandon()
                once(None)

        self._world.after(timeout_us, give_up)

    @property
    def any_node(self) -> int:
        return self._random.choice(self._node_ids)

    def _attempt(self, call: _Call) -> None:
        if call.attempts == call.attempts_max:
            self._close(call, None)
            return
        call.attempts += 1
        attempt = call.attempts
        node_id = self._leader_hint
        if node_id is None or self._random.random() < LOST_LEADER_PROBABILITY:
            node_id = self.any_node
        self._send(call, attempt, node_id, redirects=0)
        timeout_us = call.timeout_us or self._random.randint(TIMEOUT_US_MIN, TIMEOUT_US_MAX)
        self._world.after(timeout_us, lambda: self._on_timeout(call, attempt))

    def _send(self, call: _Call, attempt: int, node_id: int, redirects: int) -> None:
        def on_reply(reply: Reply | None) -> None:
            if not call.closed and call.attempts == attempt:
                self._on_reply(call, attempt, node_id, reply, redirects)

        call.connection = self.network.send(node_id, call.request, on_reply)

    def _on_reply(self, call: _Call, attempt: int, node_id: int, reply: Reply | None, redirects: int) -> None:
        self._look_at(call.request, reply)
        if reply is not None and reply.status == 307 and redirects < len(self._node_ids):
            self._leader_hint = node_of(reply.headers)
            self._send(call, attempt, self._leader_hint, redirects + 1)
        elif reply is None or reply.status == 307 or reply.status in RETRIED:
            if self._leader_hint == node_id:
                self._leader_hint = None
            self._retry_later(call, attempt)
        else:
            self._leader_hint = node_id
            self._close(call, Answer(reply.node_id, reply.status, decode_body(reply)))

    def _on_timeout(self, call: _Call, attempt: int) -> None:
        if not call.closed and call.attempts == attempt:
            if call.connection is not None:
                call.connection.abandon()
            self._attempt(call)

    def _retry_later(self, call: _Call, attempt: int) -> None:
        def retry() -> None:
            if not call.closed and call.attempts == attempt:
                self._attempt(call)

        self._world.after(self._random.randint(RETRY_US_MIN, RETRY_US_MAX), retry)

    def _close(self, call: _Call, answer: Answer | None) -> None:
        if not call.closed:
            call.closed = True
            call.on_answer(answer)

    def _look_at(self, request: Request, reply: Reply | None) -> None:
        status = reply.status if reply is not None else "none"
        self._world.trace("answer", request.method, request.target, status)
        if reply is not None and reply.status in (400, 500):
            raise Violation("internal", f"{request.method} {request.target} is answered {reply.status} {reply.body!r}")


def node_of(headers: Mapping[str, str]) -> int:
    """Return the node that a redirect points at: nodes advertise http://node-<id>."""
    return int(headers["location"].removeprefix("http://node-").partition("/")[0].partition(":")[0])
