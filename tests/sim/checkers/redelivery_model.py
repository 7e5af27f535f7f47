"""A model of messages that a group gives back, with rules of its own. It is fed with each applied command, once per
index.

A message is given back once until its offset is committed or reset. It comes again once, with its origin and one
attempt more. After the last attempt it is a dead letter; a replayed dead letter comes again. Rows of the group's own
topics that retention has removed count as delivered; only a message that is gone cannot be given back or replayed.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from store.commands.groups import (
    DeadLettersReplayed,
    GiveBack,
    GroupPut,
    MessagesGivenBack,
    PutGroup,
    ReplayDeadLetters,
)
from store.commands.views import Row
from store.errors import OFFSET_OUT_OF_RANGE, Refused
from store.limits import RETRY_MAX_ATTEMPTS
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX
from store.state.machine import StateMachine

from .group_model import GroupModel, Place
from .retention import Retention
from .violation import Violation


class _Source(NamedTuple):
    """The row that a redelivered message was given back from, and its attempt there."""

    place: Place
    offset: int
    attempt: int


class _Shown(NamedTuple):
    """The origin and the attempt in a row of a group's own topics."""

    origin: tuple[str, int, int]
    attempt: int


class RedeliveryModel:
    def __init__(self, groups: GroupModel, retention: Retention) -> None:
        self._groups, self._retention = groups, retention
        self._given: dict[tuple[str, Place], dict[int, str]] = {}
        self._replayed: dict[str, dict[int, int]] = {}
        self.scheduled: dict[str, list[_Source]] = {}
        """Messages that must come again, by group."""
        self.dead: dict[str, list[_Source]] = {}
        self._attempts_max: dict[str, int] = {}

    def put(self, command: PutGroup, result: object) -> None:
        """Take the group's own limits from now on."""
        if isinstance(result, GroupPut):
            self._attempts_max[command.group] = result.retry_max_attempts

    def give_back(self, command: GiveBack, result: object) -> None:
        group = self._groups.check_fence(command, result)
        if isinstance(result, Refused):
            spots = [((item.topic, item.queue), item.offset) for item in command.messages]
            self._check_refused(command.group, spots, result)
            return
        assert isinstance(result, MessagesGivenBack)
        self._groups.on_generation(command.group, result.generation)
        for item, given in zip(command.messages, result.messages, strict=True):
            place = (item.topic, item.queue)
            if item.offset < group.offsets.get(place, 0):
                _fail(command.group, f"{item} was committed, and is given back: {given}")
            marks = self._given.setdefault((command.group, place), {})
            known = marks.get(item.offset)
            if (given.outcome == "already_given_back") != (known is not None):
                _fail(command.group, f"{item} is given back, which was {known}: {given}")
            if known is None:
                marks[item.offset] = given.outcome
                most = self._attempts_max.get(command.group, RETRY_MAX_ATTEMPTS)
                if (given.outcome == "dead_lettered") != (given.attempt > most):
                    _fail(command.group, f"{item} comes again {most} times at most, and it is said: {given}")
                came = self.dead if given.outcome == "dead_lettered" else self.scheduled
                came.setdefault(command.group, []).append(_Source(place, item.offset, given.attempt))

    def replay(self, command: ReplayDeadLetters, result: object) -> None:
        if not isinstance(result, DeadLettersReplayed):
            letters = (DLQ_PREFIX + command.group, 0)
            self._check_refused(command.group, [(letters, offset) for offset in command.offsets], result)
            return
        replayed = self._replayed.setdefault(command.group, {})
        for each in result.messages:
            if each.duplicate != (each.offset in replayed):
                _fail(command.group, f"dead letter {each.offset} was replayed: {sorted(replayed)}; again: {each}")
            if not each.duplicate:
                replayed[each.offset] = each.replayed_at_ms
                source = _Source((DLQ_PREFIX + command.group, 0), each.offset, 0)
                self.scheduled.setdefault(command.group, []).append(source)

    def replayed_at_ms(self, group: str, offset: int) -> int | None:
        """Return the time when a dead letter was replayed; None if it never was."""
        return self._replayed.get(group, {}).get(offset)

    def on_committed(self, group: str, place: Place, offset: int) -> None:
        marks = self._given.get((group, place), {})
        for passed in [each for each in marks if each < offset]:
            del marks[passed]

    def on_reset(self, group: str, place: Place) -> None:
        self._given.pop((group, place), None)

    def check_replica(self, node_id: int, machine: StateMachine) -> None:
        """Check that every given-back message came again, or is a dead letter, once."""
        for group in self.scheduled.keys() | self.dead.keys():
            retries = _shown(self._retention.ever_in(machine, RETRY_PREFIX + group))
            letters = _shown(self._retention.ever_in(machine, DLQ_PREFIX + group))
            for sources, rows, what in (
                (self.scheduled.get(group, []), retries, "came again"),
                (self.dead.get(group, []), letters, "are dead letters"),
            ):
                wanted = Counter(_expected(group, source, retries, letters) for source in sources)
                if wanted != Counter(rows):
                    missing, extra = wanted - Counter(rows), Counter(rows) - wanted
                    _fail(group, f"on node {node_id}, of what was given back {what}: not {missing}, but {extra}")

    def _check_refused(self, group: str, spots: Sequence[tuple[Place, int]], result: object) -> None:
        """Check that a refused message is gone: clients ask only for messages that they have read, and only retention
        removes those.
        """
        if isinstance(result, Refused) and result.code == OFFSET_OUT_OF_RANGE:
            gone = [spot for spot in spots if spot[1] < self._retention.start(spot[0])]
            if not gone:
                _fail(group, f"none of {spots} is gone, and it is said: {result}")


def _expected(group: str, source: _Source, retries: Sequence[_Shown], letters: Sequence[_Shown]) -> _Shown:
    topic, queue = source.place
    if topic == RETRY_PREFIX + group:
        before = retries[source.offset]
        if source.attempt != before.attempt + 1:
            _fail(group, f"{source} is attempt {source.attempt}, the one before it was {before}")
        return _Shown(before.origin, source.attempt)
    if topic == DLQ_PREFIX + group:
        return _Shown(letters[source.offset].origin, 0)
    if source.attempt != 1:
        _fail(group, f"{source} is given back for the first time")
    return _Shown((topic, queue, source.offset), 1)


def _shown(rows: Sequence[Row]) -> list[_Shown]:
    shown = []
    for row in rows:
        came = row.redelivery
        if came is None or row.count != 1:
            raise Violation("given_back", f"a group's own topic has {row}")
        shown.append(_Shown((came.topic, came.queue, came.offset), came.attempt))
    return shown


def _fail(group: str, found: str) -> None:
    raise Violation("given_back", f"group {group}: {found}")
