"""The load of the clients: they produce with retries, commit offsets, and read from any node. Producers of transactions
and members of groups do their work beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from store.limits import DEFAULT_RETENTION_MS

from .batches import Batches
from .checkers import Violation
from .checkers.history import History
from .clients import MSGPACK, Answer, Clients, decode_body, json_request, msgpack_request
from .delayers import Delayers
from .ledger import BatchKey, Ledger, SentBatch
from .member import GROUP as MEMBERS
from .members import Members
from .pausers import Pausers
from .poppers import GROUP as POPPERS
from .poppers import Poppers
from .producers import Producers
from .purge_settings import PurgeSettings
from .purgers import Purgers
from .service_settings import ServiceSettings
from .wire import Reply, Request
from .world import World

TOPICS = {"orders": 3, "points": 2}
GROUP = "readers"
OPEN_REQUESTS_MAX = 12  # clients wait for answers: without a bound, retries drown a slow cluster
AGAIN_PROBABILITY = 0.1
ECHO_PROBABILITY, OVERLAP_PROBABILITY = 0.05, 0.05
GROWTH_PROBABILITY = 0.003
JSON_PROBABILITY = 0.15
READ_TIMEOUT_US = 800_000
RAISE_PAUSE_US = 100_000
READ_WAITS_MS = (0, 0, 0, 100)


@dataclass(frozen=True)
class Placed:
    """The place of one batch according to an answer: its offset, or the time when it will get one."""

    queue: int
    offset: int | None
    count: int
    duplicate: bool
    deliver_at_ms: int | None = None


class Workload:
    def __init__(
        self,
        world: World,
        clients: Clients,
        history: History,
        services: ServiceSettings,
        pause_us: int,
        purges: PurgeSettings | None = None,
        *,
        takes_back: bool = False,
    ) -> None:
        self.ledger = Ledger()
        self.running = True
        self.actions_max: int | None = None
        self._actions = 0
        self._world, self._clients, self._pause_us = world, clients, pause_us
        self._random = world.random_of("workload")
        self._topics_made: set[str] = set()
        self._retention_ms = services.retention_ms
        self._retention_bytes, self._log_retention_bytes = services.retention_bytes, services.log_retention_bytes
        if purges is not None and purges.raised_at_us is not None:
            self._retention_bytes = self._log_retention_bytes = None  # until the feature level is raised
        self.wrote_for_certain = False
        """A write of after the load is acknowledged."""
        self.queues = dict(TOPICS)
        """Known number of queues of each topic: never less than the acknowledged number."""
        self.batches = Batches(world, self._random, self.ledger, history.transactions)
        self.producers = Producers(
            world, clients, self.batches, self.ledger, history.transactions, self.queues, services
        )
        self.batches.first_kept = history.retention.start
        self.purgers = Purgers(world, clients, self.ledger, history, self.queues, purges)
        self.delayers = Delayers(world, clients, self.ledger, history, are_there=takes_back)
        self.members = Members(world, clients, self.batches, history, self.queues, services)
        self.poppers = Poppers(world, clients, self.batches, history, self.queues, services)
        there = ((MEMBERS, services.members), (POPPERS, services.poppers))
        groups = () if purges is None else tuple(group for group, is_there in there if is_there)
        self.pausers = Pausers(world, clients, history, groups)
        self.members.name_their_group = bool(groups)

    def start(self) -> None:
        for topic, queues in TOPICS.items():
            self._make_topic(topic, queues)
        if self._log_retention_bytes is not None:
            self._limit_log(self._log_retention_bytes)
        self.producers.start()
        self.members.start()
        self.poppers.start()
        self.purgers.start()
        self.delayers.start()
        self.pausers.start()
        self._act_later()

    def end_load(self) -> None:
        """Let clients begin nothing new and finish their work, because the cluster is healthy now."""
        self.running = False
        self._clients.network.heal()
        self.producers.heal()
        self.purgers.heal()
        self.delayers.heal()
        self.pausers.heal()
        self.members.healed = self.poppers.healed = True
        self._produce_for_certain()

    def settled(self) -> bool:
        """Return whether the clients have brought about everything that they must in a healthy cluster."""
        return not self.unsettled

    @property
    def unsettled(self) -> str:
        """A description of the work that is not done yet; empty when all is done."""
        if self._clients.open_requests:
            return f"{self._clients.open_requests} requests are not answered"
        ends = self.ledger.ends
        unsettled = self.purgers.unsettled() or self.producers.unsettled() or self.pausers.unsettled()
        return unsettled or self.members.unsettled(ends) or self.poppers.unsettled(ends)

    def stop(self) -> None:
        """End all requests."""
        self.producers.stop()
        self.members.stop()
        self.poppers.stop()

    def _make_topic(self, topic: str, queues: int) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                self._topics_made.add(topic)
            else:
                self._again(answer, lambda: self._make_topic(topic, queues))

        kept_ms = DEFAULT_RETENTION_MS if self._retention_ms is None else self._retention_ms
        settings: dict[str, object] = {"queues": queues, "type": "any", "retention_ms": kept_ms}
        if self._retention_bytes is not None:
            settings["retention_bytes"] = self._retention_bytes
        self._clients.call(json_request("PUT", f"/v1/topics/{topic}", settings), on_answer)

    def _limit_log(self, limit: int) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is None or not answer.ok:
                self._again(answer, lambda: self._limit_log(limit))

        self._clients.call(json_request("PUT", "/v1/cluster/settings", {"log_retention_bytes": limit}), on_answer)

    def _again(self, answer: Answer | None, call: Callable[[], None]) -> None:
        """Call again. A cluster whose first command came before all of its nodes had met has to be raised before."""
        if answer is not None and answer.code == "feature_not_enabled":
            request = json_request("POST", "/v1/cluster/feature-level")
            self._world.after(RAISE_PAUSE_US, lambda: self._clients.call(request, lambda _: call()))
        else:
            call()

    def _grow_topic(self) -> None:
        topic = self._random.choice(list(self.queues))
        queues = self.queues[topic] + 1

        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                self.queues[topic] = max(queues, self.queues[topic])

        self._clients.call(json_request("PUT", f"/v1/topics/{topic}", {"queues": queues}), on_answer)

    def _act_later(self) -> None:
        def act() -> None:
            if not self.running or self._actions == self.actions_max:
                return
            if len(self._topics_made) == len(TOPICS) and self._clients.open_requests < OPEN_REQUESTS_MAX:
                actions = (
                    self.produce,
                    self.produce,
                    self.producers.transact,
                    self._commit_offset,
                    self._read,
                )
                self._actions += 1
                if self._random.random() < GROWTH_PROBABILITY:
                    self._grow_topic()
                else:
                    self._random.choice(actions)()
            self._act_later()

        self._world.after(self._random.randint(1, 2 * self._pause_us), act)

    # --- producing -------------------------------------------------------------------------------------------

    def produce(self) -> None:
        """Send one to three batches to one topic. Sometimes the request is sent again after the answer."""
        chance = self._random.random()
        request, keys = self._produce_request(self._random.choice((1, 1, 1, 2, 3)), chance)
        self._clients.call(request, lambda answer: self._on_produced(request, keys, answer))

    def _produce_for_certain(self) -> None:
        """Write one batch, and repeat it until it is acknowledged."""
        if len(self._topics_made) < len(TOPICS):
            self._world.after(self._pause_us, self._produce_for_certain)
            return
        request, keys = self._produce_request(1)

        def on_answer(answer: Answer | None) -> None:
            if answer is None:
                self._clients.call(request, on_answer)
            else:
                self._on_produced(request, keys, answer)
                self.wrote_for_certain = True

        self._clients.call(request, on_answer)

    def _produce_request(self, count: int, chance: float = 1.0) -> tuple[Request, list[BatchKey]]:
        """Return a request and its batches. `chance`, 0 to 1, decides whether ids are used that were used before."""
        made = None
        if chance < ECHO_PROBABILITY:
            made = self.batches.make_echo(self.queues)
        elif chance < ECHO_PROBABILITY + OVERLAP_PROBABILITY:
            made = self.batches.make_overlap(self.queues)
        topic = self._random.choice(list(TOPICS)) if made is None else made[0]
        target = f"/v1/topics/{topic}/messages"
        if made is None and self._random.random() < JSON_PROBABILITY:
            batch_id, body = self.batches.make_json(topic, self.queues[topic])
            request = json_request("POST", target, body)
            return request._replace(headers={**request.headers, "Idempotency-Key": batch_id}), [(topic, batch_id)]
        batches = [self.batches.make(topic, self.queues[topic]) for _ in range(count)] if made is None else [made[1]]
        keys = [(topic, batch["batch_id"]) for batch in batches]
        return msgpack_request("POST", target, {"batches": batches}), keys

    def _on_produced(self, request: Request, keys: list[BatchKey], answer: Answer | None) -> None:
        if answer is None:
            self.ledger.unknown += 1
            return
        if not answer.ok:
            raise Violation("refused", f"producing {keys} was refused: {answer}")
        self.ledger.acknowledged += 1
        for key, placed in zip(keys, self._placed(keys, answer), strict=True):
            self._note_placed(key, self.ledger.batches[key], placed)
        if self._random.random() < AGAIN_PROBABILITY:
            self._clients.call(request, lambda again: self._on_produced(request, keys, again))

    def _note_placed(self, key: BatchKey, batch: SentBatch, placed: Placed) -> None:
        place = None if placed.offset is None else (placed.queue, placed.offset)
        if placed.count != batch.count - batch.known or (place is not None and batch.placed not in (None, place)):
            raise Violation("appended_once", f"{key} was placed at {batch.placed}, sent again: {placed}")
        if None not in (batch.deliver_at_ms, placed.deliver_at_ms) and batch.deliver_at_ms != placed.deliver_at_ms:
            raise Violation("appended_once", f"{key} was to come at {batch.deliver_at_ms}, sent again: {placed}")
        if batch.placed is not None or batch.deliver_at_ms is not None:
            self.ledger.duplicates += 1
            if not placed.duplicate:
                raise Violation("appended_once", f"{key} was sent again and not called a duplicate")
        if batch.delay_ms and place is not None and not placed.duplicate:
            raise Violation("delivered_early", f"{key} was to be delayed, and is placed at once: {placed}")
        if place is not None and place[1] < batch.purged_before:
            raise Violation(
                "purged", f"{key} was sent when its queue was purged before {batch.purged_before}: {placed}"
            )
        batch.placed = place or batch.placed
        batch.deliver_at_ms = placed.deliver_at_ms or batch.deliver_at_ms

    def _placed(self, keys: list[BatchKey], answer: Answer) -> list[Placed]:
        """Return the place of each batch according to the answer."""
        results = answer.body["results"]
        if "batch_id" in results[0]:
            return [
                Placed(each["queue"], each.get("offset"), each["count"], each["duplicate"], each.get("deliver_at_ms"))
                for each in results
            ]
        offsets = [each["offset"] for each in results]
        names = [f"{keys[0][1]}-{ordinal}" for ordinal in range(len(results))]
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))) or names != [
            each["message_id"] for each in results
        ]:
            raise Violation("appended_once", f"{keys} is scattered: {answer}")
        return [Placed(results[0]["queue"], offsets[0], len(offsets), results[0]["duplicate"])]

    # --- consuming -------------------------------------------------------------------------------------------

    def _commit_offset(self) -> None:
        """Commit, for a group without members, up to a message that it was told of."""
        places = [(batch.topic, *batch.placed) for batch in self.ledger.batches.values() if batch.placed is not None]
        if not places:
            return
        topic, queue, offset = self._random.choice(places)

        def on_answer(answer: Answer | None) -> None:
            if answer is None:
                self.ledger.unknown += 1
            elif answer.ok:
                self.ledger.acknowledged += 1
                self.ledger.offsets[topic, queue] = max(offset, self.ledger.offsets.get((topic, queue), 0))
            else:
                self.ledger.refused += 1
                if answer.code != "offset_moves_back":
                    raise Violation("refused", f"offset {offset} of {topic} {queue} was refused: {answer}")

        body = {"offsets": [{"topic": topic, "queue": queue, "offset": offset}]}
        self._clients.call(json_request("PUT", f"/v1/groups/{GROUP}/offsets", body), on_answer)

    def _read(self) -> None:
        """Read a queue from any node that runs, from that node's committed prefix."""
        topic = self._random.choice(list(TOPICS))
        queue = self._random.randrange(self.queues[topic])
        offset = self._random.randint(0, self.ledger.ends.get((topic, queue), 0))
        wait_ms, binary = self._random.choice(READ_WAITS_MS), self._random.random() > JSON_PROBABILITY
        target = f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages=1000&wait_ms={wait_ms}"
        headers = {"Accept": MSGPACK} if binary else {}

        def on_reply(reply: Reply | None) -> None:
            if reply is not None and reply.status == 200:
                check = self.batches.check_pulled if binary else self.batches.check_pulled_json
                check(reply.node_id, topic, queue, offset, decode_body(reply))

        request = Request("GET", target, headers=headers)
        self._clients.ask(self._clients.any_node, request, on_reply, timeout_us=READ_TIMEOUT_US)
