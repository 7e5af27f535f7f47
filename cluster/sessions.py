"""Who is still there: heartbeats of group members, in the leader's memory."""

from collections.abc import Callable
from typing import NamedTuple

from store.results import GroupView


class Session(NamedTuple):
    """One member of one group."""

    group: str
    member_id: str


class Sessions:
    """When each member was last heard of by this leader. Loop-only; `now_s` is a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._heard_s: dict[Session, float] = {}
        self._silent: set[Session] = set()
        self._term = 0

    def heard(self, group: str, member_id: str) -> None:
        session = Session(group, member_id)
        self._heard_s[session] = self._now_s()
        self._silent.discard(session)

    def forget(self, group: str, member_id: str) -> None:
        self._heard_s.pop(Session(group, member_id), None)

    def expired(self, term: int, groups: list[GroupView]) -> list[Session]:
        """Members that were silent for their whole session timeout while this node led in `term`."""
        if term != self._term:
            self._heard_s.clear()
            self._term = term
        now_s = self._now_s()
        silent: list[Session] = []
        known: dict[Session, float] = {}
        for group in groups:
            for member in group.members:
                session = Session(group.group, member.member_id)
                known[session] = heard_s = self._heard_s.get(session, now_s)
                if now_s - heard_s >= member.session_timeout_ms / 1000:
                    silent.append(session)
        self._heard_s = known
        self._silent = set(silent)
        return silent

    def lead_lost(self) -> None:
        """This node takes no heartbeats now, be it that another one leads or that it hands over. Should it go on in the
        same term, every session begins anew: silence meanwhile was none of the members'.
        """
        self._term = 0

    def is_silent(self, term: int, session: Session) -> bool:
        """Whether nothing was heard of it since `expired` named it, in the same term."""
        return term == self._term and session in self._silent
