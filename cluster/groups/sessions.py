"""Sessions of group members: the leader keeps the times of their heartbeats in memory."""

import heapq
from collections.abc import Callable
from typing import Final, NamedTuple

BROKEN_SESSION_S: Final = 5.0
"""Maximum seconds left of a session when the connection of a waiting heartbeat breaks: enough to connect again, also
after the restart of a proxy."""


class Session(NamedTuple):
    """The session of one member of one group."""

    group: str
    member_id: str


class Sessions:
    """The time of each member's last heartbeat on this leader. Use on the event loop only.

    The cost of `expired` depends on the number of sessions that may be over, not on all sessions: they lie in a heap by
    the time of their next look, and a heartbeat does not touch the heap. A member becomes known by `meet`, called in a
    walk through the groups, or by `heard`.
    """

    def __init__(self, now_s: Callable[[], float], timeout_ms_of: Callable[[Session], int | None]) -> None:
        """Create an empty table. `now_s` is a monotonic clock; `timeout_ms_of` returns the session timeout of a member,
        or None when the member does not exist any more.
        """
        self._now_s = now_s
        self._timeout_ms_of = timeout_ms_of
        self._heard_s: dict[Session, float] = {}
        self._due: list[tuple[float, Session]] = []
        self._due_s: dict[Session, float] = {}
        """Time of the heap entry that counts for a session; other entries of the session are stale."""
        self._heartbeats = 0
        self._latest: dict[Session, int] = {}
        """Number of each member's last heartbeat."""
        self._ends_s: dict[Session, float] = {}
        """Latest end of the sessions whose connection broke, in seconds of the clock."""
        self._silent: set[Session] = set()
        self._term = 0
        self.looked_at = 0
        """Number of sessions that were looked at since the start."""

    def __len__(self) -> int:
        return len(self._heard_s)

    def begin(self, term: int) -> bool:
        """Prepare a look at the sessions in `term`. Return True when this node has begun to lead in the term: every
        session begins anew then, and all members have to be met."""
        if term == self._term:
            return False
        for kept in (self._heard_s, self._due, self._due_s, self._latest, self._ends_s, self._silent):
            kept.clear()
        self._term = term
        return True

    def meet(self, group: str, member_id: str) -> None:
        """Note that a member exists. The whole session of a member that was not known begins now."""
        session = Session(group, member_id)
        if session not in self._heard_s:
            self._heard_s[session] = self._now_s()
            self._watch(session)

    def heard(self, group: str, member_id: str, *, joined: bool = False) -> int:
        """Note a heartbeat and return its number, for `broke`. With `joined`, the session timeout is read again."""
        session = Session(group, member_id)
        is_new = session not in self._heard_s
        self._heard_s[session] = self._now_s()
        self._ends_s.pop(session, None)
        self._silent.discard(session)
        self._heartbeats += 1
        self._latest[session] = self._heartbeats
        if is_new or joined:
            self._watch(session)
        return self._latest.get(session, 0)

    def broke(self, group: str, member_id: str, heartbeat: int) -> None:
        """Note that the connection of a waiting heartbeat broke, most likely because the process ended: the session
        ends after BROKEN_SESSION_S unless the member is heard again. Does nothing if it was heard meanwhile."""
        session = Session(group, member_id)
        if self._latest.get(session) == heartbeat:
            ends_s = self._ends_s[session] = self._now_s() + BROKEN_SESSION_S
            if ends_s < self._due_s[session]:
                self._push(session, ends_s)

    def forget(self, group: str, member_id: str) -> None:
        session = Session(group, member_id)
        for known in (self._heard_s, self._due_s, self._latest, self._ends_s):
            known.pop(session, None)

    def expired(self) -> list[Session]:
        """Return the members that were silent for their whole session timeout. A member is returned at each look until
        it is forgotten or heard."""
        now_s = self._now_s()
        silent: list[Session] = []
        while self._due and self._due[0][0] <= now_s:
            due_s, session = heapq.heappop(self._due)
            if self._due_s.get(session) != due_s:
                continue
            del self._due_s[session]  # the heap may hold the same entry twice
            self.looked_at += 1
            timeout_ms = self._timeout_ms_of(session)
            if timeout_ms is None:
                self.forget(*session)
                continue
            ends_s = self._heard_s[session] + timeout_ms / 1000
            ends_s = min(ends_s, self._ends_s.get(session, ends_s))
            if now_s >= ends_s:
                silent.append(session)
            else:
                self._push(session, ends_s)
        for session in silent:
            self._push(session, now_s)
        self._silent = set(silent)
        return silent

    def lead_lost(self) -> None:
        """Note that this node takes no heartbeats now, because another one leads or this one hands leadership over. If
        it goes on in the same term, every session begins anew: the members could not be heard meanwhile.
        """
        self._term = 0

    def is_silent(self, term: int, session: Session) -> bool:
        """Return whether the member was not heard since `expired` returned it, in the same term."""
        return term == self._term and session in self._silent

    def _watch(self, session: Session) -> None:
        timeout_ms = self._timeout_ms_of(session)
        if timeout_ms is None:
            self.forget(*session)
        else:
            self._push(session, self._heard_s[session] + timeout_ms / 1000)

    def _push(self, session: Session, due_s: float) -> None:
        self._due_s[session] = due_s
        heapq.heappush(self._due, (due_s, session))
