"""Operators who pause the groups of members and of pop consumers, and resume them a while later."""

from collections.abc import Sequence

from .checkers import Violation
from .checkers.history import History
from .clients import Answer, Clients, json_request
from .world import World

PAUSE_US_MAX, PAUSED_US_MAX = 1_500_000, 500_000
RESUME_PAUSE_US = 300_000
REFUSALS = ("group_not_found", "feature_not_enabled")


class Pausers:
    """All of them, for `groups`. In the end no group is paused, and its consumers have to catch up."""

    def __init__(self, world: World, clients: Clients, history: History, groups: Sequence[str]) -> None:
        self._world, self._clients, self._history, self._groups = world, clients, history, groups
        self._random = world.random_of("pausers")
        self._running = True

    def start(self) -> None:
        if self._groups:
            self._act_later()

    def heal(self) -> None:
        """Pause nothing any more, and resume all groups, also one whose pause is still on its way."""
        self._running = False
        if self._groups:
            self._resume_paused()

    def _resume_paused(self) -> None:
        for group in sorted(self._history.pops.paused):
            self._turn(group, "resume")
        self._world.after(RESUME_PAUSE_US, self._resume_paused)

    def unsettled(self) -> str:
        """Describe the groups that are paused; empty when none is."""
        return f"{sorted(self._history.pops.paused)} are paused" if self._history.pops.paused else ""

    def _act_later(self) -> None:
        def act() -> None:
            if self._running:
                group = self._random.choice(self._groups)
                self._turn(group, "pause")
                self._world.after(self._random.randint(1, PAUSED_US_MAX), lambda: self._turn(group, "resume"))
                self._act_later()

        self._world.after(self._random.randint(1, PAUSE_US_MAX), act)

    def _turn(self, group: str, verb: str) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None and not answer.ok and answer.code not in REFUSALS:
                raise Violation("refused", f"{verb} of {group} was refused: {answer}")

        self._clients.call(json_request("POST", f"/v1/groups/{group}/{verb}", {"operator": "ann"}), on_answer)
