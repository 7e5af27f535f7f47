"""State of one call to a cluster over its tries.

A *try* is a request that a node may have acted on. Looking for the leader (a refused connection, a redirect,
`no_leader`) has certainly stored nothing; it costs time of the budget, not a try.
"""

from collections.abc import Callable, Set
from typing import Final, NamedTuple

from keelmq.errors import KeelMQError, NoLeader, SendTimeout, ServerNotTrusted, Unavailable, UnknownOutcome
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.http1 import ConnectTimedOut, NotTrusted, Origin
from keelmq.transport.retry import Backoff, Deadline

SEARCH_PAUSE_MS: Final = 20
SEARCH_PAUSE_MAX_MS: Final = 250
TRY_TIMEOUT_MIN_MS: Final = 250


class Request(NamedTuple):
    """A request, the same on every try. Connection.call describes the options."""

    method: str
    target: str
    headers: str
    body: bytes
    anywhere: bool
    leader_only: bool
    leader_first: bool
    follower_ok: bool
    waits_ms: int
    once: bool = False

    @property
    def writes(self) -> bool:
        return self.method != "GET"


class Call:
    """State of one call. `asked` are the nodes asked in this round, which ends with a pause; `next_node` is next."""

    __slots__ = (
        "_last_error",
        "answers",
        "asked",
        "backoff",
        "deadline",
        "errors",
        "next_node",
        "redirects",
        "request",
        "stored_perhaps",
        "tries_left",
        "unanswered",
        "untrusted",
    )

    def __init__(
        self,
        request: Request,
        deadline: Deadline,
        tries: int | None,
        rng: Callable[[], float],
        answers: AnswerTime | None = None,
    ) -> None:
        self.answers = answers
        self.request = request
        self.deadline = deadline
        self.tries_left = tries
        self.backoff = Backoff(SEARCH_PAUSE_MS, SEARCH_PAUSE_MAX_MS, rng)
        self.asked: set[Origin] = set()
        self.next_node: Origin | None = None
        self.redirects = 0
        self.stored_perhaps = False
        self._last_error: KeelMQError | None = None
        self.errors = 0
        self.unanswered = 0
        """Number of the errors that are tries to which no answer came in time."""
        self.untrusted: dict[Origin, NotTrusted] = {}
        """Nodes with which TLS could not begin, because one side does not trust the other."""

    def try_timeout_s(self) -> float:
        """Return the time for the next try in seconds.

        The time is an equal share of the remaining budget, so that a hanging node does not use up the whole budget. If
        tries are not counted, it is half of the remaining budget plus the time that the request may wait at the broker.
        It is at least the expected answer time, because a try that is cut off earlier is stored all the same, and then
        repeated.
        """
        left_s = self.deadline.remaining_s()
        expected_s = 0.0 if self.answers is None else self.answers.expected_s
        if self.tries_left is None:
            waits_s = min(self.request.waits_ms / 1000, left_s)
            share_s = waits_s + max((left_s - waits_s) / 2, TRY_TIMEOUT_MIN_MS / 1000)
        else:
            share_s = self.share_s(self.tries_left)
        return min(left_s, max(share_s, expected_s))

    def share_s(self, parts: int) -> float:
        """Return one of `parts` equal parts of the remaining time, but at least 250 ms if that much remains."""
        left = self.deadline.remaining_s()
        return min(left, max(left / max(parts, 1), TRY_TIMEOUT_MIN_MS / 1000))

    def distrust(self, error: NotTrusted) -> Set[Origin]:
        """Note that the node of the error is not trusted, or does not trust. Return all such nodes."""
        self.untrusted[error.origin] = error
        return self.untrusted.keys()

    def used_a_try(self) -> None:
        if self.tries_left is not None:
            self.tries_left -= 1

    @property
    def last_error(self) -> KeelMQError | None:
        """The error of the last try that told anything."""
        return self._last_error

    @last_error.setter
    def last_error(self, error: KeelMQError) -> None:
        self._last_error = error
        self.errors += 1

    def over(self) -> bool:
        done = self.request.once and self.stored_perhaps
        return done or self.tries_left == 0 or self.deadline.remaining_s() <= 0

    def final_error(self) -> KeelMQError:
        last = self.last_error
        if self.untrusted and (last is None or isinstance(last, NoLeader)):  # the likelier reason, and never over
            last = not_reached(next(reversed(self.untrusted.values())), 0)
        timed_out = self.deadline.remaining_s() <= 0
        end = f"no success within {self.deadline.budget_ms:.0f} ms" if timed_out else "all tries used up"
        why = f": {last.detail}" if last is not None else ""
        if timed_out and last is not None and 1 < self.unanswered == self.errors:
            # The last try had only what was left of the time, which tells nothing.
            end, why = f"no answer within {self.deadline.budget_ms:.0f} ms ({self.unanswered} attempts)", ""
        if self.stored_perhaps and self.request.once:
            detail = f"it may or may not have taken effect, and is not repeated; ask what became of it{why}"
            return UnknownOutcome("unknown_outcome", detail)
        if self.stored_perhaps:
            cls, code = (SendTimeout, "send_timeout") if timed_out else (UnknownOutcome, "unknown_outcome")
            return cls(code, f"{end}, it may or may not have taken effect; repeat with the same id{why}")
        if last is None:
            return NoLeader("no_leader", f"{end}, nothing was sent")
        certain = ", nothing was stored" if self.request.writes else ""
        return type(last)(last.code, f"{end}{certain}{why}", status=last.status, extra=last.extra)


def is_haste(timeout_s: float) -> bool:
    """Return whether the timeout was too short for a failure to say anything about the node."""
    return timeout_s * 1000 < TRY_TIMEOUT_MIN_MS


def not_reached(error: Exception, timeout_s: float) -> KeelMQError:
    """Return the error of a call whose request was not sent, because no connection or no leader was found."""
    if isinstance(error, NotTrusted):
        return ServerNotTrusted("server_not_trusted", str(error))
    if isinstance(error, ConnectTimedOut) and is_haste(timeout_s):
        return Unavailable("not_sent", f"{error}; no connection within the {timeout_s * 1000:.0f} ms that were left")
    return NoLeader("no_leader", str(error))
