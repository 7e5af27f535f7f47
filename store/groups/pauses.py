"""Pauses of groups: a paused group is handed out nothing, and keeps its members, offsets, leases and retries."""

from store.commands.groups import GroupPause, GroupPauseSet, PauseGroup
from store.groups.record import Group
from store.groups.settings import check_note
from store.messages.outcomes import Event, EventType
from store.messages.placement import At


def turn(group: Group, command: PauseGroup, at: At) -> GroupPauseSet:
    """Pause or resume the group in its record, which the caller stores when that has changed. A repeated command
    changes nothing: the first pause stays. Refused (`invalid_request`) for an operator or reason that is too long.
    """
    check_note(command.operator, command.reason)
    record = group.record
    if command.paused == (record.pause is not None):
        return GroupPauseSet(group.name, record.pause, changed=False)
    record.pause = GroupPause(at.clock_ms, command.operator, command.reason, at.principal) if command.paused else None
    return GroupPauseSet(group.name, record.pause, changed=True)


def event_of(command: PauseGroup) -> Event:
    told: EventType = "GROUP_PAUSE" if command.paused else "GROUP_RESUME"
    return Event(told, group=command.group, client=command.operator or None)
