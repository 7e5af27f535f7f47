"""A consumer group: its members come and go, and operators set its offsets back and replay its dead letters."""

from collections.abc import Mapping

from store.messages.topics import RETRY_PREFIX

from .batches import Batches
from .checkers import Violation
from .checkers.group_model import GroupModel, Place
from .checkers.history import History
from .checkers.offset_reads import OffsetReads
from .clients import Answer, Clients, json_request
from .member import CALL_TIMEOUT_US, GROUP, Member
from .service_settings import ServiceSettings
from .world import World

MEMBERS_MAX = 3
COME_US_MAX = 900_000
ATTEMPTS_MAX = 2
RETRY_DELAYS_MS = (40, 300)
RETRIES = (RETRY_PREFIX + GROUP, 0)
RESET_PROBABILITY, REPLAY_PROBABILITY = 0.2, 0.6  # of what an operator may do when a member has left


class Members:
    """All members of the one group, and the operator who sets its offsets back."""

    def __init__(
        self,
        world: World,
        clients: Clients,
        batches: Batches,
        history: History,
        topics: Mapping[str, int],
        settings: ServiceSettings,
    ) -> None:
        self.world, self.clients, self.batches, self.history = world, clients, batches, history
        self.settings = settings
        self.offset_reads = history.offset_reads.setdefault(GROUP, OffsetReads(GROUP))
        self.random = world.random_of("members")
        self.topics = tuple(sorted(self.random.sample(list(topics), self.random.randint(1, len(topics)))))
        self.running = True
        self.healed = False
        self.name_their_group = False
        """True if pulls name the group, so that a paused one gets nothing."""
        self._queues = topics
        self._members: list[Member] = []
        self._made = 0

    @property
    def _places(self) -> list[Place]:
        return [(topic, queue) for topic in self.topics for queue in range(self._queues[topic])]

    @property
    def model(self) -> GroupModel:
        return self.history.groups

    def start(self) -> None:
        if self.settings.members:
            self._configure()

    def _configure(self) -> None:
        """Configure the group. The members start once given-back messages are not kept for longer than the run."""

        def on_answer(answer: Answer | None) -> None:
            if answer is None or not answer.ok:
                self._configure()
                return
            for _ in range(MEMBERS_MAX):
                self._come_later()

        body = {"retry_max_attempts": ATTEMPTS_MAX, "retry_delays_ms": RETRY_DELAYS_MS}
        self.clients.call(json_request("PUT", f"/v1/groups/{GROUP}", body), on_answer)

    def stop(self) -> None:
        self.running = False

    def unsettled(self, ends: Mapping[Place, int]) -> str:
        """Describe the messages that the members have not committed in the end; empty when all that anybody was told of
        are.
        """
        if not self.settings.members:
            return ""
        known = self.model.known.get(GROUP)
        offsets = known.offsets if known is not None else {}
        behind = [place for place in (*self._places, RETRIES) if offsets.get(place, 0) < ends.get(place, 0)]
        if behind:
            return f"the members have not consumed {behind}"
        waiting = len(self.history.redeliveries.scheduled.get(GROUP, ())) - ends.get(RETRIES, 0)
        return f"{waiting} messages that were given back have not come again" if waiting else ""

    def on_processed(self, place: Place, first: int, end: int) -> None:
        """Record that a member has processed the messages from `first` to before `end`, and skipped none to get
        there.
        """
        processed = self.model.processed.get((GROUP, place), 0)
        if first > processed:
            raise Violation(
                "unprocessed_passed", f"a member of {GROUP} begins at {first} of {place}, not at {processed}"
            )
        self.model.processed[GROUP, place] = max(processed, end)

    def gone(self, member: "Member") -> None:
        self._members.remove(member)
        if self.running:
            self._come_later()
            if not self.healed:
                self._operate()

    def _come_later(self) -> None:
        def come() -> None:
            if self.running:
                self._made += 1
                self._members.append(Member(self, f"m-{self._made}"))

        self.world.after(self.random.randint(0, COME_US_MAX), come)

    def _operate(self) -> None:
        if self.random.random() < RESET_PROBABILITY:
            self._reset()
        letters = self.history.redeliveries.dead.get(GROUP)
        if letters and self.random.random() < REPLAY_PROBABILITY:
            body = {"offsets": [self.random.randrange(len(letters))]}
            request = json_request("POST", f"/v1/groups/{GROUP}/dead-letters/replay", body)
            self.clients.try_once(request, lambda answer: None, timeout_us=CALL_TIMEOUT_US)

    def _reset(self) -> None:
        """Let an operator have a queue read again."""
        topic, queue = self.random.choice(self._places)
        known = self.model.known.get(GROUP)
        committed = known.offsets.get((topic, queue), 0) if known is not None else 0
        body = {"topic": topic, "queue": queue, "offset": self.random.randint(0, committed)}
        request = json_request("POST", f"/v1/groups/{GROUP}/reset", body)
        self.clients.try_once(request, lambda answer: None, timeout_us=CALL_TIMEOUT_US)
