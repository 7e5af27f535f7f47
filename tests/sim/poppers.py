"""Pop consumers: workers that come and go without a word, and an operator who interferes with them."""

from collections.abc import Mapping
from typing import Any

from store.messages.topics import RETRY_PREFIX

from .batches import Batches
from .checkers import Violation
from .checkers.history import History
from .checkers.pop_model import PoppedGroup
from .clients import Answer, Clients, json_request
from .service_settings import ServiceSettings
from .world import World

GROUP = "poppers"
WORKERS = 3
CALL_TIMEOUT_US = 500_000
PAUSE_US_MAX, HEAL_PAUSE_US = 150_000, 15_000
WORK_US_MAX = 250_000
OPERATE_US_MAX = 1_200_000
REST_US = 700_000
INVISIBLE_MS = (40, 150, 400, 2_000)
ATTEMPTS_MAX, RETRY_DELAYS_MS = 2, (30, 200)
BUSY = ("group_has_members", "too_many_held", "group_not_found", "topic_not_found")


class Poppers:
    """All workers of the one group, and the others who want to use the group."""

    def __init__(
        self,
        world: World,
        clients: Clients,
        batches: Batches,
        history: History,
        topics: Mapping[str, int],
        settings: ServiceSettings,
    ) -> None:
        self._world, self._clients, self._batches, self._history = world, clients, batches, history
        self._settings = settings
        self._random = world.random_of("poppers")
        self._topic = self._random.choice(sorted(topics))
        self._queues = topics
        self._filter = {"filter": "TRUE"} if self._random.random() < 0.3 else {}
        self._deletes = self._random.random() < 0.5
        self._rest_until_us = 0
        self._acked: set[str] = set()
        self.running = True
        self.healed = False
        history.pops.ack_kept_ms = settings.pace.pop_ack_kept_ms if settings.pace is not None else 60_000

    @property
    def are_there(self) -> bool:
        return self._settings.poppers

    def start(self) -> None:
        if self.are_there:
            self._configure()

    def stop(self) -> None:
        self.running = False

    def unsettled(self, ends: Mapping[tuple[str, int], int]) -> str:
        """Describe a message that is not acknowledged or dead in the end, or a queue that is not popped to its end;
        empty when all is done.
        """
        if not self.are_there:
            return ""
        group = self._history.pops.known.get(GROUP, PoppedGroup())
        if group.held:
            return f"the poppers hold {group.held}"
        places = [(self._topic, queue) for queue in range(self._queues[self._topic])]
        behind = [place for place in places if self._history.pops.next(GROUP, place) < ends.get(place, 0)]
        if behind:
            return f"the poppers have not taken {behind}"
        waiting = group.scheduled - self._history.pops.next(GROUP, (RETRY_PREFIX + GROUP, 0))
        return f"{waiting} messages that were given back have not come again" if waiting > 0 else ""

    def _configure(self) -> None:
        """Configure the group. The poppers start once given-back messages are not kept for longer than the run."""

        def on_answer(answer: Answer | None) -> None:
            if answer is None or not answer.ok:
                self._configure()
                return
            for number in range(WORKERS):
                self._work_later(f"w-{number}")
            self._operate_later()

        body = {"retry_max_attempts": ATTEMPTS_MAX, "retry_delays_ms": RETRY_DELAYS_MS}
        self._clients.call(json_request("PUT", f"/v1/groups/{GROUP}", body), on_answer)

    def _work_later(self, name: str) -> None:
        def work() -> None:
            if self.running and self._world.now_us < self._rest_until_us and not self.healed:
                self._work_later(name)
            elif self.running:
                self._pop(name)

        self._world.after(self._random.randint(1, HEAL_PAUSE_US if self.healed else PAUSE_US_MAX), work)

    def _pop(self, name: str) -> None:
        body = {
            "topic": self._topic,
            "max_messages": 32 if self.healed else self._random.randint(1, 8),
            "invisible_ms": self._random.choice(INVISIBLE_MS),
            "wait_ms": self._random.choice((0, 0, 100)),
            "client_id": name,
            **self._filter,
        }

        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                for message in answer.body["messages"]:
                    self._check(answer.node_id, message)
                    self._handle_later(message["receipt_handle"])
            elif answer is not None and answer.code not in BUSY:
                raise Violation("refused", f"{name} pops {body}: {answer}")
            self._work_later(name)

        self._call("POST", f"/v1/groups/{GROUP}/pop", body, on_answer)

    def _check(self, node_id: int, message: dict[str, Any]) -> None:
        """Check that the popped message is as it was sent, and that nobody has acknowledged it by this handle."""
        if message["receipt_handle"] in self._acked:
            raise Violation("popped_twice", f"{message} was acknowledged by its handle")
        batch_id = message["message_id"].rpartition("-")[0]
        if not message["body"].startswith(f"{batch_id}:"):
            raise Violation("queue_prefix", f"popped is {message}, which was not sent so")
        origin = message.get("origin", message)
        self._batches.check_popped(node_id, origin, message["message_id"], batch_id)

    def _handle_later(self, handle: str) -> None:
        """Handle the message soon, late, or never."""

        def act() -> None:
            if not self.running:
                return
            fate = 1.0 if self.healed else self._random.random()
            if fate < 0.08:
                return  # the worker is gone
            if fate < 0.2:
                self._change(handle, {"invisible_ms": self._random.choice((100, 500))})
                self._handle_later(handle)
            elif fate < 0.3:
                # A group that was deleted has the product's back-off for a while, which is longer than the run.
                ways: list[dict[str, Any]] = [{"invisible_ms": 0}]
                ways += [] if self._deletes else [{}, {"reason": "it failed"}]
                self._change(handle, self._random.choice(ways))
            else:
                self._ack(handle, again=fate < 0.4)

        self._world.after(self._random.randint(1, HEAL_PAUSE_US if self.healed else WORK_US_MAX), act)

    def _change(self, handle: str, how: dict[str, Any]) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None and not answer.ok and answer.code not in ("handle_expired", "group_not_found"):
                raise Violation("refused", f"{handle} is changed by {how}: {answer}")

        self._call("POST", f"/v1/groups/{GROUP}/pop/invisible", {"receipt_handle": handle, **how}, on_answer)

    def _ack(self, handle: str, *, again: bool) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is None:
                self._handle_later(handle)  # perhaps it is
            elif answer.ok:
                if answer.body["results"][0]["outcome"] == "acked":
                    self._acked.add(handle)
                    if again:
                        self._ack(handle, again=False)
            elif answer.code != "group_not_found":
                raise Violation("refused", f"{handle} is acknowledged: {answer}")

        self._call("POST", f"/v1/groups/{GROUP}/pop/ack", {"receipt_handles": [handle]}, on_answer)

    # --- others ------------------------------------------------------------------------------------------------

    def _operate_later(self) -> None:
        def operate() -> None:
            if not self.running or self.healed:
                return
            chance = self._random.random()
            if chance < 0.4:
                self._intrude()
            elif chance < 0.6:
                self._reset()
            elif self._deletes:
                self._delete_later()
            self._operate_later()

        self._world.after(self._random.randint(1, OPERATE_US_MAX), operate)

    def _delete_later(self) -> None:
        """Delete the group after a while in which no worker takes anything, so that nothing is held then."""

        def delete() -> None:
            if self.running and not self.healed:
                self._call("DELETE", f"/v1/groups/{GROUP}?with_dead_letters=true", None, self._on_deleted)

        self._rest_until_us = self._world.now_us + REST_US
        self._world.after(REST_US, delete)

    def _on_deleted(self, answer: Answer | None) -> None:
        """Make the settings of the deleted group again, since no node knows them any more."""
        body = {"retry_max_attempts": ATTEMPTS_MAX, "retry_delays_ms": RETRY_DELAYS_MS}
        self._clients.call(json_request("PUT", f"/v1/groups/{GROUP}", body), lambda answer: None)

    def _intrude(self) -> None:
        """Let a member join and say nothing more until its session is over."""
        body = {"topics": [self._topic], "client_id": "intruder", "session_timeout_ms": 1_000}
        self._call("POST", f"/v1/groups/{GROUP}/members", body, lambda answer: None)

    def _reset(self) -> None:
        queue = self._random.randrange(self._queues[self._topic])
        body = {"topic": self._topic, "queue": queue, "to": "earliest"}
        self._call("POST", f"/v1/groups/{GROUP}/reset", body, lambda answer: None)

    def _call(self, method: str, target: str, body: Any, on_answer: Any) -> None:
        self._clients.try_once(json_request(method, target, body), on_answer, timeout_us=CALL_TIMEOUT_US)
