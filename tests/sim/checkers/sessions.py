"""A member is expired only by a leader that heard nothing of it for its whole session, and led for as long."""

from collections.abc import Callable

from store.commands.entry import Command
from store.commands.groups import LeaveGroup
from store.commands.views import GroupView

from .violation import Violation


class SessionChecker:
    """Check when members are expired. Times are in seconds of the node's own monotonic clock."""

    def __init__(self) -> None:
        self._led_since_s: dict[tuple[int, int], float] = {}  # (node, term)
        self._heard_s: dict[tuple[int, str, str], float] = {}  # (node, group, member)

    def on_leader(self, node_id: int, term: int, now_s: float) -> None:
        self._led_since_s[node_id, term] = now_s

    def on_heard(self, node_id: int, group: str, member_id: str, now_s: float) -> None:
        """Record that the node has answered a join or a heartbeat of the member."""
        self._heard_s[node_id, group, member_id] = now_s

    def on_proposed(
        self, command: Command, node_id: int, term: int, now_s: float, view: Callable[[str], GroupView | None]
    ) -> None:
        if not isinstance(command, LeaveGroup) or command.reason != "expired":
            return
        group = view(command.group)
        members = group.members if group is not None else ()
        member = next((each for each in members if each.member_id == command.member_id), None)
        if member is None:
            return  # gone meanwhile: the command will be refused
        silent_since_s = max(
            self._led_since_s.get((node_id, term), now_s),
            self._heard_s.get((node_id, command.group, command.member_id), float("-inf")),
        )
        if (now_s - silent_since_s) * 1000 < member.session_timeout_ms - 1:
            raise Violation(
                "session",
                f"node {node_id} expires {command.member_id} of {command.group} after "
                f"{(now_s - silent_since_s) * 1000:.0f} ms, its session is {member.session_timeout_ms} ms",
            )
