"""A checker of refusals that say that nothing was stored: a node that gives one has not put the command into its log,
and does not do so later. Otherwise a client that sends again without an id would have its messages twice.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cluster.problems import Problem
from raft.errors import FeatureNotEnabled, NoLeader, NoRoom, NotLeader, Overloaded, ProposalTooLarge
from raft.library import LEADER
from store.commands.entry import Command, decode_entry
from store.commands.groups import CommitOffsets, GiveBack
from store.commands.messages import CancelScheduled, Produce
from store.commands.pops import AckPopped
from store.commands.transactions import Decide, Prepare, ResumeTransaction
from store.log.errors import DiskFull
from store.log.record import KIND_ENTRY

from .violation import Violation

if TYPE_CHECKING:
    from tests.sim.replica import Replica

_CERTAIN = (NotLeader, NoLeader, Overloaded, NoRoom, DiskFull, ProposalTooLarge, FeatureNotEnabled)
_WATCHED = Produce | Prepare | Decide | ResumeTransaction | CommitOffsets | GiveBack | AckPopped | CancelScheduled

Life = tuple[int, int]
"""A node, and the number of the life of its process."""


class Refusals:
    """Compare how often a process put a command into its log with how often it was asked to and did not refuse. The
    same command may be under way several times.
    """

    def __init__(self) -> None:
        self._may: Counter[tuple[Life, Any]] = Counter()

    def asked(self, life: Life, command: Command) -> None:
        if isinstance(command, _WATCHED):
            self._may[life, command] += 1

    def answered(self, life: Life, command: Command, error: BaseException) -> None:
        """Note the error with which the process answered; only some errors promise that nothing was stored."""
        is_full = isinstance(error, Problem) and error.code == "disk_full"
        if isinstance(command, _WATCHED) and (is_full or isinstance(error, _CERTAIN)):
            self._take(life, command, f"is refused: {error!r}")

    def appended(self, life: Life, commands: Iterable[Command]) -> None:
        """Note the commands of an entry that the process, leading, has put into its log. An entry of an earlier feature
        level may hold others than were asked for.
        """
        for command in commands:
            if isinstance(command, _WATCHED) and (life, command) in self._may:
                self._take(life, command, "is appended")

    def _take(self, life: Life, command: Command, what: str) -> None:
        self._may[life, command] -= 1
        if self._may[life, command] < 0:
            raise Violation(
                "refused_for_certain", f"node {life[0]} was not asked so often, or refused: {command} {what}"
            )


def watch_refusals(replica: "Replica") -> None:
    """Let the entries that this life of a node proposes go past the checker."""
    append, handlers, life = replica.log.append, replica.raft, (replica.node_id, replica.life)

    def watched(index: int, term: int, kind: int, payload: bytes) -> int:
        position = append(index, term, kind, payload)
        if kind == KIND_ENTRY and handlers.state.role == LEADER and handlers.state.term == term:
            with replica.observer.finding():
                replica.observer.history.refusals.appended(life, decode_entry(payload).commands)
        return position

    replica.log.append = watched  # type: ignore[method-assign]
