"""Timelines for people: one line per event, with the time since the first event and the log entry that caused it."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from keelmq.cli.output import when
from keelmq.printable import printable

COLORS: Final = {
    "committed": "green",
    "consumed": "green",
    "rolled_back": "yellow",
    "taken_back": "yellow",
    "given_back": "yellow",
    "skipped": "yellow",
    "discarded": "red",
    "dead_lettered": "red",
    "resumed": "cyan",
    "replayed": "cyan",
    "rewound": "cyan",
}


class Event(Protocol):
    """The fields that the events of all timelines have."""

    @property
    def at_ms(self) -> int: ...
    @property
    def event(self) -> str: ...
    @property
    def raft_index(self) -> int: ...


E = TypeVar("E", bound=Event)


def print_timeline(title: str, timeline: Sequence[E], said_of: Callable[[E], Sequence[str]]) -> None:
    """Print the events of a timeline; `said_of` returns the details of an event besides its time and name.

    In a pipe nothing is cut.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.tree import Tree

    tree = Tree(escape(printable(title)))
    start_ms = timeline[0].at_ms if timeline else 0
    for event in timeline:
        name = event.event
        color = COLORS.get(name)
        shown = f"[{color}]{name}[/{color}]" if color else escape(printable(name))
        after = f"+{event.at_ms - start_ms} ms"
        said = escape(printable(", ".join(said_of(event))))
        tree.add(f"{when(event.at_ms)}  {after:>10}  {shown}  {said}  [dim]#{event.raft_index}")
    console = Console()
    (console if console.is_terminal else Console(width=4_000)).print(tree)
