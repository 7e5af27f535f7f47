"""Reads of a state machine that visit everything at once: the broker walks in steps, and lists in pages."""

from store.commands.views import GroupView
from store.state.machine import StateMachine
from store.state.message_search import MessagePlace, TraceEvent, order_of


def groups_of(machine: StateMachine) -> list[GroupView]:
    """Return all groups with their members."""
    names = machine.group_names(None, machine.groups_count)
    return [view for name in names if (view := machine.group(name)) is not None]


def trace_of(machine: StateMachine, place: MessagePlace) -> list[TraceEvent]:
    """Return the recorded events of a message, in order."""
    return sorted(filter(None, machine.trace_steps(place)), key=order_of)
