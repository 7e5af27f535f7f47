"""A member of a consumer group: it joins, processes, commits, gives back, freezes past its session, leaves or dies."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol
from urllib.parse import quote

from store.messages.topics import RETRY_PREFIX

from .batches import Batches
from .checkers import Violation
from .checkers.group_model import GroupModel, Place
from .checkers.history import History
from .checkers.offset_reads import OffsetReads
from .clients import MSGPACK, Answer, Clients, decode_body, json_request
from .service_settings import ServiceSettings
from .wire import OnLeft, Reply, Request
from .world import World

GROUP = "members"
CALL_TIMEOUT_US = 500_000
PULL_TIMEOUT_US = 400_000
PULL_MESSAGES, PULL_WAIT_MS = 8, 150
HEAL_MESSAGES = 200  # members that are far behind catch up
BEAT_US_MAX = 300_000
WORK_US_MAX = 150_000
HEAL_WORK_US = 20_000
FATE_US_MAX = 2_500_000
COMMIT_PROBABILITY = 0.7
REREAD_PROBABILITY = 0.08
GIVE_BACK_PROBABILITY, GIVE_BACK_AGAIN_PROBABILITY = 0.15, 0.5
STALE_PROBABILITY = 0.08
FENCES = ("stale_generation", "member_not_found", "not_assigned", "offset_moves_back")
GONE = "offset_out_of_range"


class Fleet(Protocol):
    """The objects that all members of the group share."""

    world: World
    clients: Clients
    batches: Batches
    history: History
    offset_reads: OffsetReads
    settings: ServiceSettings
    random: Random
    topics: tuple[str, ...]
    running: bool
    healed: bool
    name_their_group: bool

    @property
    def model(self) -> GroupModel: ...
    def on_processed(self, place: Place, first: int, end: int) -> None: ...
    def gone(self, member: "Member") -> None: ...


class Member:
    """One consumer. It joins, keeps its session, reads its queues from any node, and commits to the leader."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet, self._name = fleet, name
        self._random = fleet.random
        self._member_id: str | None = name if self._random.random() < 0.5 else None
        self._joined = False
        self._generation = 0
        self._assignment: set[Place] = set()
        self._positions: dict[Place, int] | None = None  # None: to be asked for
        self._processed: dict[Place, int] = {}  # not committed yet
        self._frozen_until_us = 0
        self._ended = False
        self._join()
        self._beat_later()
        self._work_later()
        self._meet_fate_later()

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self) -> None:
        fleet = self._fleet
        body: dict[str, Any] = {
            "topics": fleet.topics,
            "client_id": self._name,
            "session_timeout_ms": fleet.settings.session_timeout_ms,
        }
        if self._member_id is not None:
            body["member_id"] = self._member_id

        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                self._member_id, self._joined = answer.body["member_id"], True
                self._adopt(answer.body)

        self._call("POST", f"/v1/groups/{GROUP}/members", body, on_answer, self._on_heard)

    def _beat_later(self) -> None:
        def beat() -> None:
            if self._ended or not self._fleet.running:
                return
            if self._awake:
                if self._joined:
                    self._beat()
                else:
                    self._join()
            self._beat_later()

        self._fleet.world.after(self._random.randint(BEAT_US_MAX // 2, BEAT_US_MAX), beat)

    def _beat(self) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                self._adopt(answer.body)
            elif answer is not None and answer.status == 404:
                self._lose_membership()

        target = f"/v1/groups/{GROUP}/members/{self._member_id}/heartbeat"
        self._call("POST", target, {"generation": self._generation}, on_answer, self._on_heard)

    def _adopt(self, view: dict[str, Any]) -> None:
        places = {(each["topic"], each["queue"]) for each in view["assignment"]}
        self._fleet.model.on_assigned(GROUP, view["generation"], view["member_id"], sorted(places))
        if view["generation"] > self._generation:
            self._generation, self._assignment = view["generation"], places
            self._positions = None
            self._processed.clear()

    def _lose_membership(self) -> None:
        self._joined = False
        self._assignment.clear()
        self._positions = None
        self._processed.clear()

    def _on_heard(self, reply: Reply) -> None:
        """Begin the session anew at the node whose answer to a join or heartbeat has left."""
        if reply.status in (200, 201):
            member_id = decode_body(reply)["member_id"]
            now_s = asyncio.get_running_loop().time()
            self._fleet.history.sessions.on_heard(reply.node_id, GROUP, member_id, now_s)

    # --- work ------------------------------------------------------------------------------------------------

    def _work_later(self) -> None:
        delay_us_max = HEAL_WORK_US if self._fleet.healed else WORK_US_MAX
        self._fleet.world.after(self._random.randint(1, delay_us_max), self._work)

    def _work(self) -> None:
        if self._ended or not self._fleet.running:
            return
        if not self._awake or not self._joined or not self._assignment:
            self._work_later()
        elif self._positions is None:
            self._ask_positions()
        else:
            self._pull(self._random.choice(sorted(self._assignment)), self._positions)

    def _ask_positions(self) -> None:
        generation, offset_reads = self._generation, self._fleet.offset_reads
        asked = offset_reads.asked()

        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok and generation == self._generation:
                committed = {(each["topic"], each["queue"]): each["offset"] for each in answer.body["offsets"]}
                offset_reads.answered(asked, committed, answer.node_id)
                self._positions = {place: committed.get(place, 0) for place in self._assignment}
            self._work_later()

        self._call("GET", f"/v1/groups/{GROUP}/offsets", None, on_answer)

    def _pull(self, place: Place, positions: dict[Place, int]) -> None:
        """Read from any node, process, and go on."""
        fleet, (topic, queue), offset, generation = self._fleet, place, positions[place], self._generation
        most, wait_ms = (HEAL_MESSAGES, 0) if fleet.healed else (PULL_MESSAGES, PULL_WAIT_MS)
        query = f"offset={offset}&max_messages={most}&wait_ms={wait_ms}{f'&group={GROUP}' * fleet.name_their_group}"
        request = Request(
            "GET", f"/v1/topics/{quote(topic, safe='')}/queues/{queue}/messages?{query}", headers={"Accept": MSGPACK}
        )

        failure_probability = GIVE_BACK_AGAIN_PROBABILITY if topic.startswith(RETRY_PREFIX) else GIVE_BACK_PROBABILITY

        def process(reply: Reply | None) -> None:
            end = self._check(place, offset, reply) if reply is not None and reply.status == 200 else offset

            def processed() -> None:
                fleet.on_processed(place, offset, end)
                if positions is self._positions:
                    positions[place] = self._processed[place] = end
                self._go_on(generation)

            if end == offset:
                self._go_on(generation)
            elif self._random.random() < failure_probability:
                self._give_back(generation, place, self._random.randrange(offset, end), processed)
            else:
                processed()

        fleet.clients.ask(
            fleet.clients.any_node,
            request,
            lambda reply: self._when_awake(lambda: process(reply)),
            timeout_us=PULL_TIMEOUT_US,
        )

    def _check(self, place: Place, offset: int, reply: Reply) -> int:
        """Check the messages read from `offset` on and return the offset after the last one."""
        batches, (topic, queue), body = self._fleet.batches, place, decode_body(reply)
        if topic.startswith(RETRY_PREFIX):
            return batches.check_given_again(reply.node_id, topic, offset, body)
        return batches.check_pulled(reply.node_id, topic, queue, offset, body)

    def _go_on(self, generation: int) -> None:
        """Go on working, with or without a commit. Now and then, processed messages without a commit are read once
        more.
        """
        if self._processed and self._random.random() < COMMIT_PROBABILITY:
            self._commit(generation)
        elif self._random.random() < REREAD_PROBABILITY:
            self._look_up()
        self._work_later()

    def _look_up(self) -> None:
        """Take the committed offsets for the positions, whatever this member believes."""
        self._processed.clear()
        self._positions = None

    def _give_back(self, generation: int, place: Place, offset: int, processed: Callable[[], None]) -> None:
        """Give one failed message back. It counts as processed once the cluster has acknowledged that."""
        member_id, (topic, queue) = self._member_id, place
        message: dict[str, Any] = {"topic": topic, "queue": queue, "offset": offset, "reason": "it failed"}
        delay_ms = self._random.choice((None, None, 0, 100))
        if delay_ms is not None:
            message["delay_ms"] = delay_ms

        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                (given,) = answer.body["results"]
                if (given["topic"], given["queue"], given["offset"]) != (topic, queue, offset):
                    raise Violation("given_back", f"{member_id} gives back {message}: {answer}")
                processed()
                return
            has_expired = answer is not None and answer.code == GONE and self._fleet.settings.messages_expire
            if answer is not None and answer.code not in FENCES and not has_expired:
                raise Violation("refused", f"{member_id} gives back {message} in {generation}: {answer}")
            self._look_up()
            self._work_later()

        body = {"member_id": member_id, "generation": generation, "messages": [message]}
        self._call("POST", f"/v1/groups/{GROUP}/retries", body, on_answer)

    def _commit(self, generation: int) -> None:
        """Commit the processed offsets in the generation in which they were read, now and then in another one."""
        member_id = self._member_id
        offsets, self._processed = self._processed, {}
        if self._random.random() < STALE_PROBABILITY and not self._fleet.healed:
            generation += self._random.choice((-1, 1))
        asked = self._fleet.offset_reads.asked()

        def on_answer(answer: Answer | None) -> None:
            if answer is None:
                self._positions = None  # unknown: look it up
            elif answer.ok:
                self._check_accepted(member_id, generation, offsets)
                self._fleet.offset_reads.committed(asked, offsets)
            elif answer.code not in FENCES:
                raise Violation("refused", f"{member_id} commits {offsets} of {generation}: {answer}")
            else:
                self._positions = None

        entries = [
            {"topic": topic, "queue": queue, "offset": offset} for (topic, queue), offset in sorted(offsets.items())
        ]
        body = {"member_id": member_id, "generation": max(0, generation), "offsets": entries}
        self._call("PUT", f"/v1/groups/{GROUP}/offsets", body, on_answer)

    def _check_accepted(self, member_id: str | None, generation: int, offsets: Mapping[Place, int]) -> None:
        for place, offset in offsets.items():
            if (GROUP, member_id, generation, place, offset) not in self._fleet.model.accepted:
                raise Violation("acknowledged_lost", f"{member_id} was told that {offset} of {place} is committed")

    # --- fate ------------------------------------------------------------------------------------------------

    def _meet_fate_later(self) -> None:
        self._fleet.world.after(self._random.randint(FATE_US_MAX // 4, FATE_US_MAX), self._meet_fate)

    def _meet_fate(self) -> None:
        fleet = self._fleet
        if self._ended or fleet.healed or not fleet.running:
            return
        fate = self._random.choice(("freeze", "leave", "die", "go on", "go on"))
        if fate == "freeze":
            session_us = fleet.settings.session_timeout_ms * 1_000
            self._frozen_until_us = fleet.world.now_us + self._random.randint(session_us // 2, 2 * session_us)
        elif fate == "leave" and self._joined:
            self._call("DELETE", f"/v1/groups/{GROUP}/members/{self._member_id}", None, lambda answer: None)
            self._end()
        elif fate == "die":
            self._end()
        if not self._ended:
            self._meet_fate_later()

    def _end(self) -> None:
        self._ended = True
        self._fleet.gone(self)

    @property
    def _awake(self) -> bool:
        return self._fleet.world.now_us >= self._frozen_until_us

    def _call(
        self,
        method: str,
        target: str,
        body: Any,
        on_answer: Callable[[Answer | None], None],
        on_left: OnLeft | None = None,
    ) -> None:
        self._fleet.clients.try_once(
            json_request(method, target, body, on_left),
            lambda answer: self._when_awake(lambda: on_answer(answer)),
            timeout_us=CALL_TIMEOUT_US,
        )

    def _when_awake(self, action: Callable[[], None]) -> None:
        """Run the action now; later if the member is frozen; never if it has ended."""
        if self._ended or not self._fleet.running:
            return
        wait_us = self._frozen_until_us - self._fleet.world.now_us
        if wait_us > 0:
            self._fleet.world.after(wait_us, lambda: self._when_awake(action))
        else:
            action()
