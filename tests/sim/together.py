"""Calls about transactions that share a request, as those of the SDK do. Some calls go alone all the same."""

from collections.abc import Callable, Mapping
from typing import Any

from .checkers import Violation
from .clients import RETRIED, Answer, Clients, OnAnswer, msgpack_request
from .wire import Request
from .world import World

ALONE_PROBABILITY = 0.5
GATHER_US_MAX = 60_000

Item = Mapping[str, Any]


class Together:
    """Gather calls. `alone` makes the request of one call; `target` takes the request of several, listed under
    `name`.
    """

    def __init__(
        self, world: World, clients: Clients, target: str, name: str, alone: Callable[[Item], Request]
    ) -> None:
        self._world, self._clients = world, clients
        self._target, self._name, self._alone = target, name, alone
        self._random = world.random_of(name)
        self._waiting: list[tuple[Item, OnAnswer]] = []

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def call(self, item: Item, on_answer: OnAnswer) -> None:
        """Send the item, alone or in a request with others. `on_answer` is called once, with the answer for this item,
        or with None when there was none in time.
        """
        if self._random.random() < ALONE_PROBABILITY:
            self._clients.call(self._alone(item), on_answer)
            return
        self._waiting.append((item, on_answer))
        if len(self._waiting) == 1:
            self._world.after(self._random.randint(0, GATHER_US_MAX), self._send)

    def _send(self) -> None:
        group, self._waiting = self._waiting, []
        if len(group) == 1:
            ((item, on_answer),) = group
            self._clients.call(self._alone(item), on_answer)
            return

        def on_all(answer: Answer | None) -> None:
            if answer is None:
                for _, on_answer in group:
                    on_answer(None)
                return
            if not answer.ok:
                raise Violation("refused", f"{[item for item, _ in group]} were refused: {answer}")
            for (item, on_answer), part in zip(group, self._parts([item for item, _ in group], answer), strict=True):
                if part.status in RETRIED:
                    self._clients.call(self._alone(item), on_answer)
                else:
                    on_answer(part)

        self._clients.call(msgpack_request("POST", self._target, {self._name: [item for item, _ in group]}), on_all)

    def _parts(self, items: list[Item], answer: Answer) -> list[Answer]:
        """Return the answer for each item. Checks that exactly the items of the request are answered."""
        results = answer.body["results"]
        asked, told = ([each["transaction_id"] for each in given] for given in (items, results))
        if asked != told:
            raise Violation("refused", f"{asked} were asked for in one request, {told} are answered")
        parts = []
        for result in results:
            problem = result.get("problem")
            status, body = (200, result) if problem is None else (problem["status"], problem)
            part = Answer(answer.node_id, status, body)
            if part.status in (400, 500):
                raise Violation("internal", f"{self._target} is answered {result}")
            parts.append(part)
        return parts
