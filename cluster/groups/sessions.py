"""Who is still there: heartbeats of group members, in the leader's memory."""

import heapq
from collections.abc import Callable
from typing import Final, NamedTuple

BROKEN_SESSION_S: Final = 5.0
"""What is left at most of a session after the connection broke on which a heartbeat of its member waited: enough to
connect again, be it after a proxy was restarted."""


class Session(NamedTuple):
    """One member of one group."""

    group: str
    member_id: str


class Sessions:
    """When each member was last heard of by this leader. Loop-only; `now_s` is a monotonic clock.

    A look costs as much as there are sessions whose time may be over, however many go on: they lie in a heap by the
    time at which they are to be looked at next, which a heartbeat does not touch. Members are `met` by whoever walks
    through the groups, or heard.
    """

    def __init__(self, now_s: Callable[[], float], timeout_ms_of: Callable[[Session], int | None]) -> None:
        """`timeout_ms_of` is the session timeout of a member; None when there is no such member any more."""
        self._now_s = now_s
        self._timeout_ms_of = timeout_ms_of
        self._heard_s: dict[Session, float] = {}
        self._due: list[tuple[float, Session]] = []
        self._due_s: dict[Session, float] = {}
        """Which entry of the heap counts for a session; others of it are left over."""
        self._heartbeats = 0
        self._latest: dict[Session, int] = {}
        """The number of each member's last heartbeat."""
        self._ends_s: dict[Session, float] = {}
        """When sessions end at the latest whose connection broke."""
        self._silent: set[Session] = set()
        self._term = 0
        self.looked_at = 0
        """Sessions that were looked at since the start."""

    def __len__(self) -> int:
        return len(self._heard_s)

    def begin(self, term: int) -> bool:
        """Before each look. True when this node has begun to lead in `term`: every session begins anew, and all members
        have to be met."""
        if term == self._term:
            return False
        for kept in (self._heard_s, self._due, self._due_s, self._latest, self._ends_s, self._silent):
            kept.clear()
        self._term = term
        return True

    def meet(self, group: str, member_id: str) -> None:
        """There is such a member; one that is not known yet has its whole session from now on."""
        session = Session(group, member_id)
        if session not in self._heard_s:
            self._heard_s[session] = self._now_s()
            self._watch(session)

    def heard(self, group: str, member_id: str, *, joined: bool = False) -> int:
        """The number of this heartbeat, for `broke`. `joined`: its session timeout may be another one now."""
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
        """The connection on which this heartbeat waited is gone, most likely with the process: the session ends in 5 s,
        unless the member is heard of. Ignored if it has been since."""
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
        """Members that were silent for their whole session timeout since they were met; again at each look until they
        are forgotten or heard."""
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
        """This node takes no heartbeats now, be it that another one leads or that it hands over. Should it go on in the
        same term, every session begins anew: silence meanwhile was none of the members'.
        """
        self._term = 0

    def is_silent(self, term: int, session: Session) -> bool:
        """Whether nothing was heard of it since `expired` named it, in the same term."""
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
