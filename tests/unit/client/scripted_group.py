"""The HTTP side of a consumer group with one topic `t`: its queues, and its answers to a member's requests."""

import asyncio
from collections.abc import Awaitable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from keelmq.blocks.batch import encode_messages
from keelmq.message import Message
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, msgpack_answer, problem


class ScriptedGroup:
    """A group with one member, which has the queues `assigned` in `generation`. A commit of another generation is
    refused.
    """

    def __init__(self, queues: int = 2) -> None:
        self.messages: dict[int, list[bytes]] = {queue: [] for queue in range(queues)}
        self.assigned = list(range(queues))
        self.generation = 1
        self.created_at_ms, self.joined_at_ms = 1, 2
        """Creation time of the topic, and join time of the member."""
        self.others: list[dict[str, Any]] = []
        """The other members, as the group shows them."""
        self.refuses_heartbeats = False
        self.known = True
        """False: the session is over, and a heartbeat is told so."""
        self.refuses_joins = False
        self.refuses_offsets = False
        """Nobody can be asked where the group is."""
        self.committed = dict.fromkeys(range(queues), 0)
        self.given_back: list[dict[str, Any]] = []
        self.removed_before = 0
        """Offset before which messages of all queues are removed: they cannot be given back."""
        self.pulls: list[int] = []
        """The queues of all pulls."""
        self.heartbeats = 0
        self.waits = False
        """True if heartbeats wait for a rebalance, as those of today's brokers do; see `rebalance`."""
        self.knows_pauses = False
        """True if memberships tell of pauses, as those of nodes at feature level 2 do; see `turn`."""
        self.paused: dict[str, Any] | None = None
        self.named: list[str | None] = []
        """The groups that pulls have named."""
        self.applied_index = 0
        """Applied index that the leader names."""
        self._beats: list[asyncio.Future[HttpResponse]] = []
        self._waiting: list[tuple[Request, asyncio.Future[HttpResponse]]] = []

    def connection(self) -> Connection:
        return Connection(SERVERS, transport=ScriptedTransport(self, answers_cluster=True), rng=lambda: 0.0)

    def append(self, queue: int, *bodies: bytes) -> None:
        self.messages[queue] += bodies
        waiting, self._waiting = self._waiting, []
        for request, answer in waiting:
            if not answer.done():
                pulled = self._pull(request, answer)
                if isinstance(pulled, HttpResponse):
                    answer.set_result(pulled)

    def make_topic_anew(self, *bodies: bytes) -> None:
        """Delete the topic and create it with these messages in queue 0, and answer the pulls that wait. Another member
        begins the group there; no heartbeat is answered before `rebalance`.
        """
        self.created_at_ms += 10
        self.messages, self.committed = {0: list(bodies)}, {0: 0}
        self.generation += 3
        self.append(0)

    def rebalance(self, assigned: list[int]) -> None:
        """Begin a new generation with this assignment and answer the heartbeats that wait."""
        self.assigned, self.generation = assigned, self.generation + 1
        self._answer_beats()

    def turn(self, paused: dict[str, Any] | None) -> None:
        """Pause or resume the group and answer the heartbeats that wait."""
        self.paused = paused
        self._answer_beats()

    def _answer_beats(self) -> None:
        for beat in self._beats:
            if not beat.done():
                beat.set_result(self._membership(200))
        self._beats.clear()

    async def _wait(self, wait_ms: int) -> HttpResponse:
        beat: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._beats.append(beat)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await beat
        except TimeoutError:
            return self._membership(200)

    def __call__(self, request: Request) -> HttpResponse | Awaitable[HttpResponse]:
        if self._refuses(request):
            return problem(429, "overloaded")
        match request.method, request.target.partition("?")[0].split("/")[2:]:
            case "GET", ["cluster"]:
                return json_answer({"leader_url": "http://n1:1"})
            case "GET", ["topics", "t"]:
                return self._topic()
            case "GET", ["topics", "t", "queues", queue, "messages"]:
                self.pulls.append(int(queue))
                return self._pull(request, asyncio.get_running_loop().create_future())
            case "POST", ["groups", "g", "members"]:
                self.known = True
                return self._membership(201)
            case "POST", ["groups", "g", "members", _, "heartbeat"]:
                return self._heartbeat(request.json())
            case "DELETE", ["groups", "g", "members", _]:
                return HttpResponse(204, {}, b"")
            case "PUT", ["groups", "g", "offsets"]:
                return self._commit(request.json())
            case "POST", ["groups", "g", "retries"]:
                messages = request.json()["messages"]
                if any(each["offset"] < self.removed_before for each in messages):
                    return problem(416, "offset_out_of_range", max_offset=max(map(len, self.messages.values())))
                self.given_back += messages
                return json_answer({"results": [], "generation": self.generation})
            case "GET", ["groups", "g", *offsets]:
                return self._applied(json_answer({"offsets": self._offsets()} if offsets else self._detail()))
        raise AssertionError(f"{request.method} {request.target}")

    def _refuses(self, request: Request) -> bool:
        match request.method, request.target.partition("?")[0].split("/")[2:]:
            case "POST", ["groups", "g", "members"]:
                return self.refuses_joins
            case "GET", ["groups", "g", *_]:
                return self.refuses_offsets
        return False

    def _heartbeat(self, body: dict[str, Any]) -> HttpResponse | Awaitable[HttpResponse]:
        self.heartbeats += 1
        if self.refuses_heartbeats:
            return problem(429, "overloaded")
        assert self.knows_pauses or "paused" not in body, "an older node refuses the field"
        is_told = body["generation"] == self.generation and body.get("paused", False) == (self.paused is not None)
        if self.waits and self.known and is_told and "wait_ms" in body:
            return self._wait(body["wait_ms"])
        return self._membership(200) if self.known else problem(404, "member_not_found")

    def _topic(self) -> HttpResponse:
        offsets = [{"queue": q, "min_offset": 0, "max_offset": len(m)} for q, m in self.messages.items()]
        topic = {"topic": "t", "queues": len(self.messages), "type": "any", "retention_ms": 1}
        return json_answer({**topic, "created_at_ms": self.created_at_ms, "queue_offsets": offsets})

    def _detail(self) -> dict[str, Any]:
        assignment = [{"topic": "t", "queue": queue} for queue in self.assigned]
        member = {"member_id": "m", "joined_at_ms": self.joined_at_ms, "assignment": assignment}
        return {"generation": self.generation, "members": [member, *self.others], "offsets": self._offsets()}

    def _offsets(self) -> list[dict[str, Any]]:
        return [{"topic": "t", "queue": q, "offset": offset} for q, offset in self.committed.items()]

    def _membership(self, status: int) -> HttpResponse:
        assignment = [{"topic": "t", "queue": queue} for queue in self.assigned]
        body = {"member_id": "m", "generation": self.generation, "assignment": assignment, "session_timeout_ms": 1_000}
        return json_answer({**body, "paused": self.paused} if self.knows_pauses else body, status)

    def _commit(self, commit: dict[str, Any]) -> HttpResponse:
        if not self.known:
            return problem(404, "member_not_found")
        if commit["generation"] != self.generation:
            return problem(409, "stale_generation", generation=self.generation)
        for each in commit["offsets"]:
            self.committed[each["queue"]] = each["offset"]
        return json_answer({})

    def _pull(
        self, request: Request, answer: asyncio.Future[HttpResponse]
    ) -> HttpResponse | asyncio.Future[HttpResponse]:
        target = urlsplit(request.target)
        queue, query = int(target.path.split("/")[5]), parse_qs(target.query)
        self.named += query.get("group", [None])
        assert self.knows_pauses or "group" not in query, "an older node refuses the parameter"
        offset, count = int(query["offset"][0]), int(query["max_messages"][0])
        bodies = self.messages[queue][offset : offset + count]
        if not bodies:
            self._waiting.append((request, answer))
            return answer
        block = encode_messages([Message(body=body) for body in bodies])
        batch = {"base_offset": offset, "count": len(bodies), "batch_id": f"b{queue}-{offset}"}
        batch |= {"crc32c": block.crc32c, "block": block.data, "skip": [], "stored_at_ms": self.created_at_ms + 1}
        end = offset + len(bodies)
        pulled = {"batches": [batch], "next_offset": end, "max_offset": len(self.messages[queue])}
        return self._applied(msgpack_answer(pulled))

    def _applied(self, answer: HttpResponse) -> HttpResponse:
        return answer._replace(headers={**answer.headers, "keelmq-applied-index": str(self.applied_index)})
