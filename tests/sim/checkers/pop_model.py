"""A model of popped messages with rules of its own. It is fed with each applied command, once per index.

A message is handed out once. From then on, by the replicated clock, it has one handle until it is acknowledged or given
back. An acknowledged message never comes again. A paused group is handed out nothing. A message that is given back
comes again once with one attempt more, or becomes a dead letter: not before its time, unless its handle asked for that.
Messages that retention has removed by then do not come, and are never handed out. A group has either members or popped
messages.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from store.commands.groups import (
    DeleteGroup,
    GroupDeleted,
    GroupPauseSet,
    GroupPut,
    Joined,
    OffsetsReset,
    PauseGroup,
    PutGroup,
    ResetOffsets,
)
from store.commands.pops import (
    AckPopped,
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    Pop,
    PopHandle,
    Popped,
    PopsAcked,
    PopsExpired,
)
from store.errors import GROUP_HAS_MEMBERS, GROUP_IS_POPPED, HANDLE_EXPIRED, Refused
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX
from store.state.machine import StateMachine

from .group_model import GroupModel, KnownGroup, Place
from .retention import Retention
from .violation import Violation

Spot = tuple[Place, int]


class Shown(NamedTuple):
    """The origin and the attempt in a row of a group's own topics."""

    origin: Spot
    attempt: int


@dataclass
class Hold:
    """One lease of one message."""

    spot: Spot
    due_ms: int
    state: Literal["held", "acked", "given back"] = "held"
    answered_until_ms: int = 0
    """Acknowledged once more before, it is answered alike."""


@dataclass
class PoppedGroup:
    next: dict[Place, int] = field(default_factory=dict)
    """The offset to hand out next, by place, if it is not gone by then."""
    holds: dict[PopHandle, Hold] = field(default_factory=dict)
    held: dict[Spot, PopHandle] = field(default_factory=dict)
    given: list[Spot] = field(default_factory=list)
    """Messages that must come again or be a dead letter, once each."""
    scheduled: int = 0
    """Number of given-back messages that come again."""


class PopModel:
    def __init__(self, groups: GroupModel, retention: Retention) -> None:
        self._groups, self._retention = groups, retention
        self.known: dict[str, PoppedGroup] = {}
        self.ack_kept_ms = 0
        self.paused: set[str] = set()
        """The groups that are handed out nothing."""
        self._attempts_max: dict[str, int] = {}
        self._deleted: set[str] = set()

    def next(self, name: str, place: Place) -> int:
        """Return the next offset to hand out, after all messages that are gone."""
        group = self.known.get(name, PoppedGroup())
        return max(group.next.get(place, 0), self._retention.start(place))

    def put(self, command: PutGroup, result: object) -> None:
        if isinstance(result, GroupPut) and command.group not in self._deleted:
            self._attempts_max[command.group] = result.retry_max_attempts

    def pop(self, command: Pop, result: object, clock_ms: int) -> None:
        members = self._groups.known.get(command.group, KnownGroup()).members
        if not isinstance(result, Popped):
            refused_for = result.code if isinstance(result, Refused) else None
            if refused_for == GROUP_HAS_MEMBERS and not members:
                _fail("pop_or_members", command.group, "has no members, and may not pop for having them")
            return
        if members:
            _fail("pop_or_members", command.group, f"has the members {members}, and pops {result}")
        if command.group in self.paused and result.messages:
            _fail("paused", command.group, f"is paused, and pops {result}")
        group = self.known.setdefault(command.group, PoppedGroup())
        offsets = self._groups.known.setdefault(command.group, KnownGroup()).offsets
        for messages in result.messages:
            place = (messages.topic, messages.queue)
            for offset in messages.offsets:
                if (place, offset) in group.held:
                    _fail("popped_twice", command.group, f"{place} {offset} is held, and handed out: {messages}")
                next_offset = self.next(command.group, place)
                if offset != next_offset:
                    _fail("pop_order", command.group, f"{messages} at {place}; next is {next_offset}")
                group.next[place] = offsets[place] = offset + 1
                handle = messages.handle(offset)
                if handle in group.holds:
                    _fail("popped_twice", command.group, f"{handle} is given for another message")
                group.holds[handle] = Hold((place, offset), clock_ms + command.invisible_ms)
                group.held[place, offset] = handle
        if sum(len(each.offsets) for each in result.messages) > command.max_messages:
            _fail("popped_twice", command.group, f"{command} is answered {result}")
        if result.due_ms != clock_ms + command.invisible_ms:
            _fail("pop_times", command.group, f"{command} at {clock_ms} is answered {result}")

    def pause(self, command: PauseGroup, result: object) -> None:
        if not isinstance(result, GroupPauseSet):
            return
        was_paused = command.group in self.paused
        if result.changed != (was_paused != command.paused) or (result.pause is not None) != command.paused:
            _fail("paused", command.group, f"is paused: {was_paused}; {command} is answered {result}")
        if command.paused:
            self.paused.add(command.group)
        else:
            self.paused.discard(command.group)

    def ack(self, command: AckPopped, result: object, clock_ms: int) -> None:
        if not isinstance(result, PopsAcked):
            return
        group = self.known.get(command.group, PoppedGroup())
        for handle, outcome in zip(command.handles, result.outcomes, strict=True):
            hold = group.holds.get(handle)
            state = hold.state if hold is not None else "given back"
            if outcome == "acked" and state == "given back":
                _fail("ack_fencing", command.group, f"{handle} is over ({hold}), and acknowledged")
            if outcome != "acked" and hold is not None:
                if state == "held":
                    _fail("ack_fencing", command.group, f"{handle} is held ({hold}), and told that it is over")
                if state == "acked" and clock_ms < hold.answered_until_ms:
                    _fail("ack_fencing", command.group, f"{handle} is acknowledged ({hold}), and told that it is not")
            if hold is not None and hold.state == "held":
                self._end(group, hold, "acked")
                hold.answered_until_ms = clock_ms + self.ack_kept_ms

    def change(self, command: ChangeInvisible, result: object, clock_ms: int) -> None:
        group = self.known.get(command.group, PoppedGroup())
        hold = group.holds.get(command.handle)
        is_held = hold is not None and hold.state == "held"
        if isinstance(result, Refused):
            if is_held and result.code == HANDLE_EXPIRED:
                _fail("ack_fencing", command.group, f"{command.handle} is held ({hold}), and told that it is over")
            return
        assert isinstance(result, InvisibleChanged)
        if hold is None or not is_held:
            _fail("ack_fencing", command.group, f"{command.handle} is over ({hold}), and goes on: {result}")
            return
        if result.outcome == "held":
            if not command.invisible_ms or result.due_ms != clock_ms + command.invisible_ms:
                _fail("pop_times", command.group, f"{command} at {clock_ms} is answered {result}")
            hold.due_ms = clock_ms + (command.invisible_ms or 0)
            return
        if (result.outcome == "gone") != self._is_gone(hold.spot):
            _fail("popped_lost", command.group, f"{hold} is gone: {self._is_gone(hold.spot)}; given back: {result}")
        self._give_back(group, hold)
        group.scheduled += result.outcome == "scheduled"

    def expire(self, command: ExpirePopped, result: object, clock_ms: int) -> None:
        assert isinstance(result, PopsExpired)
        come = 0
        if len({name for name, _ in result.messages}) == 1:
            self.known.setdefault(result.messages[0][0], PoppedGroup()).scheduled += result.scheduled
        for name, messages in result.messages:
            group = self.known.get(name, PoppedGroup())
            for offset in messages.offsets:
                hold = group.holds.get(messages.handle(offset))
                if hold is None or hold.state != "held":
                    _fail("popped_twice", name, f"{messages} comes again at {clock_ms}, and is {hold}")
                    return
                if hold.due_ms > clock_ms:
                    _fail("pop_times", name, f"{hold} comes again at {clock_ms}")
                come += not self._is_gone(hold.spot)
                self._give_back(group, hold)
        if come != result.scheduled + result.dead_lettered:
            _fail(
                "popped_lost", str(result.messages), f"have {come} messages that are not gone, and it is said: {result}"
            )

    def reset(self, command: ResetOffsets, result: object) -> None:
        group = self.known.get(command.group)
        if group is None or not isinstance(result, OffsetsReset):
            return
        for item in command.offsets:
            place = (item.topic, item.queue)
            group.next[place] = item.offset
            for hold in group.holds.values():
                if hold.spot[0] == place:
                    hold.answered_until_ms = 0
                    if hold.state == "held":
                        self._end(group, hold, "given back")

    def join(self, name: str, result: object) -> None:
        held = self.known[name].held if name in self.known else {}
        if isinstance(result, Joined) and held:
            _fail("pop_or_members", name, f"holds {held}, and takes a member: {result}")
        if isinstance(result, Refused) and result.code == GROUP_IS_POPPED and not held:
            _fail("pop_or_members", name, "holds nothing, and takes no members for that")

    def delete(self, command: DeleteGroup, result: object) -> None:
        if not isinstance(result, GroupDeleted):
            return
        known = self._groups.delete(command.group)
        group = self.known.pop(command.group, None)
        if (known is not None and known.members) or (group is not None and group.held):
            _fail("pop_or_members", command.group, f"is used ({known}, {group}), and deleted")
        self._deleted.add(command.group)
        self.paused.discard(command.group)
        self._attempts_max.pop(command.group, None)

    def check_deleted(self, command: DeleteGroup, machine: StateMachine) -> None:
        """Check, after the entry that deletes the group, that the group's own topics are gone."""
        gone = [RETRY_PREFIX] + [DLQ_PREFIX] * command.with_dead_letters
        left = [prefix + command.group for prefix in gone if machine.topic(prefix + command.group) is not None]
        if left:
            _fail("group_deleted", command.group, f"is deleted, and {left} stay")

    def check_replica(self, node_id: int, machine: StateMachine) -> None:
        """Check that exactly the given-back messages came again or are dead, and that exactly the held ones count."""
        for name in self._groups.known.keys() | self.known.keys():
            if (machine.group_pause(name) is not None) != (name in self.paused):
                _fail(
                    "paused", name, f"is paused: {name in self.paused}, by node {node_id}: {machine.group_pause(name)}"
                )
        for name in self._deleted - self._groups.known.keys() - self.known.keys():
            left = [topic for topic in (RETRY_PREFIX + name, DLQ_PREFIX + name) if machine.topic(topic) is not None]
            if machine.group(name) is not None or left:
                _fail("group_deleted", name, f"was deleted, node {node_id} has {machine.group(name)} and {left}")
        for name, group in self.known.items():
            held = Counter(place for place, _ in group.held)
            there = {(each.topic, each.queue): each.held for each in machine.offsets(name) or () if each.held}
            if there != dict(held):
                _fail("popped_held", name, f"holds {dict(held)}, by node {node_id} {there}")
            retries = self._ever_in(machine, RETRY_PREFIX + name)
            letters = self._ever_in(machine, DLQ_PREFIX + name)
            wanted = Counter(_expected(name, spot, retries) for spot in group.given)
            came = Counter((*retries, *letters))
            if wanted != came:
                missing, extra = wanted - came, came - wanted
                _fail("popped_lost", name, f"on node {node_id}, of what was given back came not {missing}, but {extra}")
            most = self._attempts_max.get(name)
            if most is not None and any(each.attempt != most + 1 for each in letters):
                _fail("popped_lost", name, f"on node {node_id} are dead {letters}")
            if most is not None and any(each.attempt > most for each in retries):
                _fail("popped_lost", name, f"on node {node_id} come again {retries}")

    def _is_gone(self, spot: Spot) -> bool:
        place, offset = spot
        return offset < self._retention.start(place)

    def _give_back(self, group: PoppedGroup, hold: Hold) -> None:
        self._end(group, hold, "given back")
        if not self._is_gone(hold.spot):
            group.given.append(hold.spot)

    def _ever_in(self, machine: StateMachine, topic: str) -> list[Shown]:
        """Return all messages that were ever there."""
        found = []
        for row in self._retention.ever_in(machine, topic):
            came = row.redelivery
            if came is None or row.count != 1:
                raise Violation("popped_lost", f"{topic} has {row}")
            found.append(Shown(((came.topic, came.queue), came.offset), came.attempt))
        return found

    def _end(self, group: PoppedGroup, hold: Hold, state: Literal["acked", "given back"]) -> None:
        hold.state = state
        del group.held[hold.spot]


def _expected(group: str, spot: Spot, retries: list[Shown]) -> Shown:
    place, offset = spot
    if place[0] == RETRY_PREFIX + group:
        before = retries[offset]
        return Shown(before.origin, before.attempt + 1)
    return Shown((place, offset), 1)


def _fail(invariant: str, group: str, found: str) -> None:
    raise Violation(invariant, f"group {group}: {found}")
