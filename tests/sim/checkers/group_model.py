"""A model of consumer groups with rules of its own. It is fed with each applied command and its result, once per index.

Generations only go on, and with every change of members; a commit is carried out exactly when its member is in the
group and knows the generation; each subscribed queue has one owner; a committed offset is never ahead of the offset up
to which messages were processed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from store.commands.groups import (
    CommitOffsets,
    GiveBack,
    GroupPut,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    OffsetsCommitted,
    OffsetsReset,
    PutGroup,
    ResetOffsets,
)
from store.commands.views import GroupView
from store.errors import GROUP_HAS_MEMBERS, GROUP_NOT_FOUND, MEMBER_NOT_FOUND, STALE_GENERATION, Refused
from store.messages.topics import RETRY_PREFIX
from store.state.machine import StateMachine

from .retention import Retention
from .violation import Violation

Place = tuple[str, int]
"""Topic and queue."""

FENCED_BY = frozenset({STALE_GENERATION, MEMBER_NOT_FOUND, GROUP_HAS_MEMBERS, GROUP_NOT_FOUND})


@dataclass
class KnownGroup:
    """The state of one group according to the log."""

    generation: int = 0
    members: set[str] = field(default_factory=set)
    topics: tuple[str, ...] = ()
    offsets: dict[Place, int] = field(default_factory=dict)


class GroupModel:
    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self.known: dict[str, KnownGroup] = {}
        self.accepted: set[tuple[str, str, int, Place, int]] = set()
        """Commits that were carried out: group, member, generation, place, offset."""
        self.processed: dict[tuple[str, Place], int] = {}
        """Offset by group and place: some member has processed every message before it. The code that plays the members
        keeps it.
        """
        self._owners: dict[tuple[str, int], dict[Place, str]] = {}

    def join(self, command: JoinGroup, result: object) -> None:
        if not isinstance(result, Joined):
            return
        group = self.known.setdefault(command.group, KnownGroup())
        topics = tuple(sorted(set(command.topics)))
        changed = command.member_id not in group.members or topics != group.topics
        self._move_on(command.group, group, result.generation, changed=changed)
        group.members.add(command.member_id)
        group.topics = topics
        self.on_assigned(
            command.group, result.generation, result.member_id, [(each.topic, each.queue) for each in result.assignment]
        )

    def leave(self, command: LeaveGroup, result: object) -> None:
        group = self.known.get(command.group)
        if group is None or command.member_id not in group.members:
            if not isinstance(result, Refused):
                _fail("group_members", command.group, f"{command.member_id} is no member, and leaves: {result}")
            return
        if not isinstance(result, Left):
            _fail("group_members", command.group, f"{command.member_id} cannot leave: {result}")
            return
        self._move_on(command.group, group, result.generation, changed=True)
        group.members.discard(command.member_id)

    def put(self, command: PutGroup, result: object) -> None:
        if isinstance(result, GroupPut):
            self.known.setdefault(command.group, KnownGroup())

    def check_fence(self, command: CommitOffsets | GiveBack, result: object) -> KnownGroup:
        """Check that the command is refused for its member or generation exactly when it must be. Returns its group."""
        group = self.known.get(command.group, KnownGroup())
        fence = self._fence(command, group)
        refusal = result.code if isinstance(result, Refused) else None
        if fence != (refusal if refusal in FENCED_BY else None):
            _fail("group_fencing", command.group, f"{command} at generation {group.generation} is answered {result}")
        if not isinstance(result, Refused):
            self.known[command.group] = group
        return group

    def on_generation(self, name: str, generation: int) -> None:
        """Check the generation after a command that may have moved it on."""
        self._move_on(name, self.known[name], generation, changed=False)

    def commit(self, command: CommitOffsets, result: object) -> None:
        group = self.check_fence(command, result)
        if not isinstance(result, OffsetsCommitted):
            return
        for item in command.offsets:
            place = (item.topic, item.queue)
            if item.offset < group.offsets.get(place, 0):
                _fail("group_offsets", command.group, f"{command} moves back from {group.offsets[place]}")
            if command.member_id is not None and command.generation is not None:
                self._check_owner(command.group, command.generation, command.member_id, place)
                self.accepted.add((command.group, command.member_id, command.generation, place, item.offset))
                self._check_processed(command.group, place, item.offset)
            group.offsets[place] = item.offset

    def reset(self, command: ResetOffsets, result: object) -> None:
        if isinstance(result, OffsetsReset):
            group = self.known[command.group]
            self._move_on(command.group, group, result.generation, changed=True)
            group.offsets.update({(item.topic, item.queue): item.offset for item in command.offsets})

    def topic_grown(self, topic: str) -> None:
        """Expect a new generation of every group that subscribes to the topic, which is new or has more queues."""
        for group in self.known.values():
            if group.members and topic in group.topics:
                group.generation += 1

    def delete_topic(self, topic: str) -> None:
        """Forget the offsets of a deleted topic. A new topic of this name has none."""
        for group in self.known.values():
            for place in [place for place in group.offsets if place[0] == topic]:
                del group.offsets[place]

    def delete(self, name: str) -> KnownGroup | None:
        """Forget the group and return its last state. A new group of this name is another group, whose generations
        begin anew.
        """
        for mine in [each for each in self._owners if each[0] == name]:
            del self._owners[mine]
        return self.known.pop(name, None)

    def on_assigned(self, name: str, generation: int, member_id: str, places: Collection[Place]) -> None:
        """Check an answer that says that the member owns these queues in that generation."""
        owners = self._owners.setdefault((name, generation), {})
        for place in places:
            owner = owners.setdefault(place, member_id)
            if owner != member_id:
                _fail("one_owner", name, f"{place} belongs to {owner} and {member_id} in generation {generation}")

    def check_view(self, view: GroupView, queues_of: Mapping[str, int]) -> None:
        """Check, after an applied entry, that every queue of the subscribed topics has exactly one owner."""
        known = self.known.get(view.group, KnownGroup())
        if view.generation != known.generation:
            _fail("generation", view.group, f"is at generation {view.generation}, by the log at {known.generation}")
        for member in view.members:
            places = [(each.topic, each.queue) for each in member.assignment]
            self.on_assigned(view.group, view.generation, member.member_id, places)
        owned = [(each.topic, each.queue) for member in view.members for each in member.assignment]
        read = (*view.topics, RETRY_PREFIX + view.group)
        wanted = [(topic, queue) for topic in read for queue in range(queues_of.get(topic, 0))]
        if view.members and sorted(owned) != sorted(wanted):
            _fail("one_owner", view.group, f"subscribes to {wanted}; assigned in {view.generation} are {owned}")

    def check_replica(self, node_id: int, machine: StateMachine) -> None:
        """Check that the node's state is as the log says."""
        for name, group in self.known.items():
            view = machine.group(name)
            if view is None or view.generation != group.generation:
                _fail("generation", name, f"is at generation {group.generation}; node {node_id} has {view}")
                return
            members = {member.member_id for member in view.members}
            if members != group.members:
                _fail("group_members", name, f"has {sorted(group.members)}, node {node_id} has {sorted(members)}")
            offsets = {(item.topic, item.queue): item.offset for item in machine.offsets(name) or ()}
            for place in offsets.keys() | group.offsets.keys():
                start = self._retention.start(place)  # where it is among what is gone makes no difference
                if max(offsets.get(place, 0), start) != max(group.offsets.get(place, 0), start):
                    _fail("group_offsets", name, f"committed {group.offsets}, node {node_id} has {offsets}")

    def _move_on(self, name: str, group: KnownGroup, generation: int, *, changed: bool) -> None:
        if generation < group.generation + changed:
            _fail("generation", name, f"goes from generation {group.generation} to {generation}")
        group.generation = generation

    def _fence(self, command: CommitOffsets | GiveBack, group: KnownGroup) -> str | None:
        """Return the code with which the fence must refuse the command; None when the fence lets it pass."""
        if command.member_id is None:
            return GROUP_HAS_MEMBERS if group.members else None
        if command.group not in self.known:
            return GROUP_NOT_FOUND
        if command.member_id not in group.members:
            return MEMBER_NOT_FOUND
        return STALE_GENERATION if command.generation != group.generation else None

    def _check_owner(self, name: str, generation: int, member_id: str, place: Place) -> None:
        owner = self._owners.get((name, generation), {}).get(place)
        if owner not in (None, member_id):
            _fail("one_owner", name, f"{member_id} commits {place} in generation {generation}, which {owner} owns")

    def _check_processed(self, name: str, place: Place, offset: int) -> None:
        processed = self.processed.get((name, place), 0)
        if offset > processed:
            _fail("unprocessed_passed", name, f"commits {offset} at {place}, processed are those before {processed}")


def _fail(invariant: str, group: str, found: str) -> None:
    raise Violation(invariant, f"group {group}: {found}")
