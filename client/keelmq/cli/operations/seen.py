"""Answers of the nodes that `keelmq doctor` goes by, and the form of its findings."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from keelmq.cli.operations.exposition import Reading

if TYPE_CHECKING:
    from keelmq.admin import ClusterStatus

Severity = Literal["critical", "warning"]

WAITING_S: Final = 300.0


class Finding(NamedTuple):
    """One thing that is wrong: what, by which evidence, and the next command or step."""

    code: str
    severity: Severity
    what: str
    evidence: str
    next_step: str
    about: str = ""
    """Id of the node, and the part of it, that this is about; empty for the cluster. Findings of one cause share it."""

    def document(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if name != "about"}


def place_of(node_id: int | str, part: str = "") -> str:
    """Return what a finding is about: a node, or a part of it, as the subject of an alarm names it."""
    return f"{node_id}/{part}" if part else str(node_id)


class Seen(NamedTuple):
    """Answers of the nodes about themselves and each other."""

    statuses: "Sequence[ClusterStatus]"
    unreachable: Mapping[str, str]
    """URLs of nodes that did not answer, with the error."""
    before: Mapping[int, Reading]
    """Metrics by node, at the beginning. Nodes that show none are missing."""
    after: Mapping[int, Reading]
    """The same at the end, some seconds later."""
    moved: "Mapping[int, tuple[ClusterStatus, ClusterStatus]]"
    """Statuses by node at the beginning and at the end."""
    now_s: float
    waiting_s: float = WAITING_S
    """Seconds for which a message may wait for a group, or a transaction for its decision."""
    consumed: Mapping[str, bool] = MappingProxyType({})
    """Groups of `waiting_groups` that were examined: true with members or with messages that were popped."""

    @property
    def members(self) -> "list[ClusterStatus]":
        return [status for status in self.statuses if not status.removed]

    @property
    def leader(self) -> "ClusterStatus | None":
        leading = [status for status in self.members if status.role == "leader"]
        return max(leading, key=lambda status: status.term, default=None)

    def silent_url(self, node_id: str) -> str | None:
        """Return the URL at which the node did not answer; None if it answered, or was not asked at its URL."""
        if any(str(status.node_id) == node_id for status in self.statuses):
            return None
        nodes = (node for status in self.statuses for node in status.nodes)
        own = {node.url.rstrip("/") for node in nodes if str(node.node_id) == node_id}
        return next((url for url in self.unreachable if url.rstrip("/") in own), None)

    def of_leader(self) -> Reading:
        leader = self.leader
        return Reading() if leader is None else self.after.get(leader.node_id, Reading())
