"""Quotas: what each principal may ask of this node in a second, in requests, bytes of requests and bytes of answers.

A request needs one token of requests, and that neither of the two buckets of bytes is overdrawn. It then takes what it
has, and its answer what that turns out to have. So an answer is never cut and a large body never refused for its size;
what it takes beyond the quota delays the next request of its principal. Over any time, a principal gets its rates, and
one second of them and one request (or those under way at a time) more. The processor time of filters is charged in the
same way, when it has been used (filter_time.py). What a principal holds at a time is counted elsewhere (holdings.py),
and compared with its limits here.

Users are told apart by name, all others by their client address. A principal of whom nothing is remembered has full
buckets, so those who were silent for a second are forgotten when room is needed.
"""

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.budgets.time_shares import PRINCIPAL_SENDER
from cluster.budgets.token_bucket import BURST_S, TokenBucket
from cluster.metrics import gauge
from cluster.problems import RETRY_AFTER_MS, Problem
from cluster.process.quota_file import ADMINISTRATOR, QuotaSettings, Rates

Kind = Literal["user", "address"]
"""Ways to tell principals apart."""
HeldQuota = Literal["connections", "long_polls", "held_bytes"]
"""Limits of what a principal holds at a time."""

PRINCIPALS_MAX: Final = 10_000
"""Maximum number of users, and of addresses, that are told apart at a time. Further ones share one quota."""
FORGET_INTERVAL_S: Final = 1.0
"""Seconds between two searches for principals to forget, each of which takes about two milliseconds."""
SERIES_MAX: Final = 100
"""Maximum number of principals with a series of their own in the metrics."""
THROTTLED_MAX: Final = 10_000
"""Maximum number of throttled principals that are told apart in the count of those without a series."""
HELD_RETRY_MS: Final = 1_000
"""Time after which to try again where a principal holds what it may: nobody knows when it gives something back."""
ANONYMOUS: Final = "anonymous"
"""Principal of all client addresses in the metrics: their number has no bound."""
OTHERS: Final = "(others)"
"""Name of the quota that principals beyond PRINCIPALS_MAX share. No user may have it, so it has the default rates."""


class Quota:
    """The buckets of one principal. A resource without a limit has none."""

    __slots__ = ("_filter_ms", "_in_bytes", "_name", "_note", "_out_bytes", "_requests", "rates")

    def __init__(self, name: str, rates: Rates, note: Callable[[str], None]) -> None:
        """Create full buckets. `note` is told the name whenever a request is refused."""
        self.rates = rates
        self._name = name
        self._note = note
        self._requests = TokenBucket(rates.requests_per_s) if rates.requests_per_s else None
        self._in_bytes = TokenBucket(rates.in_bytes_per_s) if rates.in_bytes_per_s else None
        self._out_bytes = TokenBucket(rates.out_bytes_per_s) if rates.out_bytes_per_s else None
        self._filter_ms = TokenBucket(rates.filter_ms_per_s) if rates.filter_ms_per_s else None

    def begin(self, now_s: float, in_bytes: int, *, keeps_session: bool = False) -> None:
        """Charge a request with a body of `in_bytes`. Raises Problem quota_exceeded, and charges nothing then.

        A request that keeps a session may be another burst beyond the quota of requests, and does not wait for bytes:
        a consumer that asks for too much becomes slower, but does not lose its queues.
        """
        requests, received, sent = self._requests, self._in_bytes, self._out_bytes
        wait_s, used_up = 0.0, None
        if requests is not None:
            wait_s = requests.wait_s(now_s, 1) - (BURST_S if keeps_session else 0.0)
            used_up = "requests_per_s", requests
        if received is not None and not keeps_session and (bytes_wait_s := received.wait_s(now_s, 0)) > wait_s:
            wait_s, used_up = bytes_wait_s, ("in_bytes_per_s", received)
        if sent is not None and not keeps_session and (bytes_wait_s := sent.wait_s(now_s, 0)) > wait_s:
            wait_s, used_up = bytes_wait_s, ("out_bytes_per_s", sent)
        if used_up is not None and wait_s > 0:
            limit, bucket = used_up
            raise self._refusal(limit, bucket, wait_s if keeps_session else bucket.turn_s(now_s, wait_s))
        if requests is not None:
            requests.take(now_s, 1)
        if received is not None and in_bytes:
            received.take(now_s, in_bytes)

    def received(self, now_s: float, in_bytes: int) -> None:
        """Charge for bytes of a request's body that were not announced."""
        if self._in_bytes is not None:
            self._in_bytes.take(now_s, in_bytes)

    def sent(self, now_s: float, out_bytes: int) -> None:
        """Charge for bytes of an answer's body."""
        if self._out_bytes is not None:
            self._out_bytes.take(now_s, out_bytes)

    @property
    def limits_filters(self) -> bool:
        return self._filter_ms is not None

    def owes_filter_time(self, now_s: float) -> bool:
        """Return whether filters have taken more than the quota."""
        return self._filter_ms is not None and self._filter_ms.wait_s(now_s, 0) > 0

    def begin_filter(self, now_s: float) -> None:
        """Raise Problem quota_exceeded while filters have taken more than the quota."""
        bucket = self._filter_ms
        if bucket is not None and (wait_s := bucket.wait_s(now_s, 0)) > 0:
            raise self._refusal("filter_ms_per_s", bucket, bucket.turn_s(now_s, wait_s))

    def filtered(self, now_s: float, worked_ms: float) -> None:
        """Charge for processor time of a filter."""
        if self._filter_ms is not None:
            self._filter_ms.take(now_s, worked_ms)

    def require_held(self, quota: HeldQuota, has: int, size: int, *, keeps_session: bool) -> None:
        """Raise Problem quota_exceeded when `size` more than what the principal has are beyond the limit, or with
        `keeps_session` beyond twice the limit.
        """
        limit = getattr(self.rates, quota) or 0
        if limit and has + size > limit * (2 if keeps_session else 1):
            self._note(self._name)
            raise Problem(
                "quota_exceeded",
                f"{self._name} has {has} of its quota of {quota} = {limit} at this node, and asks for {size} more; "
                f"send it again in {HELD_RETRY_MS} ms",
                {"quota": quota, "limit": limit, RETRY_AFTER_MS: HELD_RETRY_MS},
            )

    def usage(self, now_s: float) -> tuple[int | None, ...]:
        """Return what is left of requests, bytes of requests and of answers, ms of filters; None without a limit."""
        return tuple(None if bucket is None else bucket.left(now_s) for bucket in self._buckets())

    def is_full(self, now_s: float) -> bool:
        """Return whether a new quota would be the same."""
        return all(bucket is None or bucket.is_full(now_s) for bucket in self._buckets())

    def _buckets(self) -> Iterator[TokenBucket | None]:
        yield from (self._requests, self._in_bytes, self._out_bytes, self._filter_ms)

    def _refusal(self, quota: str, bucket: TokenBucket, wait_s: float) -> Problem:
        self._note(self._name)
        wait_ms = math.ceil(wait_s * 1000)
        return Problem(
            "quota_exceeded",
            f"{self._name} has used its quota of {quota} = {bucket.rate} at this node; send it again in {wait_ms} ms",
            {"quota": quota, "limit": bucket.rate, RETRY_AFTER_MS: wait_ms},
        )


class Quotas:
    """The quotas of all principals at one node. Use on the event loop only."""

    def __init__(self, settings: QuotaSettings, steady_s: Callable[[], float]) -> None:
        self.steady_s = steady_s
        self.is_unlimited = True
        """True while the settings limit nobody and weigh all alike, so that nothing has to be looked up."""
        self._settings = settings
        self._throttled: dict[str, int] = {}
        """Number of refused requests of the principals with a series."""
        self._others: set[str] = set()
        self._others_throttled = 0
        self._users = _Principals(lambda name: Quota(name, self._rates_of(name), self._note))
        self._addresses = _Principals(lambda _: Quota(ANONYMOUS, self._settings.anonymous, self._note))
        self.use(settings)

    @property
    def settings(self) -> QuotaSettings:
        """The settings that are in force."""
        return self._settings

    def use(self, settings: QuotaSettings) -> None:
        """Go by these settings from now on. A principal whose rates have changed begins with full buckets."""
        self._settings = settings
        self.is_unlimited = not any(
            rates.has_effect for rates in (settings.default, settings.anonymous, *settings.users.values())
        )
        self._users.go_by(self._rates_of)
        self._addresses.go_by(lambda _: settings.anonymous)

    def of_user(self, name: str) -> Quota:
        return self._users.known.get(name) or self._users.add(name, self.steady_s())

    def of_address(self, address: str) -> Quota:
        """Return the quota of a client that does not show who it is."""
        return self._addresses.known.get(address) or self._addresses.add(address, self.steady_s())

    def of_sender(self, sender: str) -> Quota | None:
        """Return the quota of who sends a request, as `time_shares.sender` names it; None for the built-in
        administrator, for what the node does by itself, and while nobody is limited.
        """
        if self.is_unlimited or not sender:
            return None
        name = sender.removeprefix(PRINCIPAL_SENDER)
        if name == sender:
            return self.of_address(sender)
        return None if name == ADMINISTRATOR else self.of_user(name)

    def weight_of(self, sender: str) -> int:
        """Return the weight of who sends a proposal, as `time_shares.sender` names it: a principal or an address."""
        name = sender.removeprefix(PRINCIPAL_SENDER)
        rates = self._settings.anonymous if name == sender else self._rates_of(name)
        return rates.weight or 1

    def page(self, kind: Kind, after: str, limit: int) -> list[tuple[str, Quota]]:
        """Return up to `limit` principals of a kind by name, and their quotas, as far as they are told apart."""
        known = (self._users if kind == "user" else self._addresses).known
        names = heapq.nsmallest(limit, (name for name in known if name > after))
        return [(name, known[name]) for name in names]

    def throttled(self, user: str) -> int | None:
        """Return the number of refused requests of a user; None when it has no series of its own."""
        return self._throttled.get(user, 0 if len(self._throttled) < SERIES_MAX else None)

    def counters(self) -> Iterator[Metric]:
        """Yield the number of refused requests, of the first SERIES_MAX principals one by one."""
        throttled = CounterMetricFamily(
            "keelmq_quota_throttled", "Requests that were refused because of a quota", labels=["principal"]
        )
        for name, count in sorted(self._throttled.items()):
            throttled.add_metric([name], count)
        yield throttled
        others = CounterMetricFamily(
            "keelmq_quota_throttled_others",
            f"The same, of all principals beyond the first {SERIES_MAX}, which have no series of their own",
        )
        others.add_metric([], self._others_throttled)
        yield others
        yield gauge(
            "keelmq_quota_throttled_other_principals",
            f"Number of these principals, {THROTTLED_MAX:,} at most",
            len(self._others),
        )

    def _rates_of(self, user: str) -> Rates:
        return self._settings.users.get(user, self._settings.default)

    def _note(self, name: str) -> None:
        if name in self._throttled or len(self._throttled) < SERIES_MAX:
            self._throttled[name] = self._throttled.get(name, 0) + 1
            return
        self._others_throttled += 1
        if len(self._others) < THROTTLED_MAX:
            self._others.add(name)


class _Principals:
    """The quotas of users, or of addresses, as far as they are not full."""

    def __init__(self, make: Callable[[str], Quota]) -> None:
        self.known: dict[str, Quota] = {}
        self._make = make
        self._shared: Quota | None = None
        """The quota of all principals for whom there is no room."""
        self._searched_s = float("-inf")

    def add(self, name: str, now_s: float) -> Quota:
        """Return the quota of a principal that is not known."""
        if len(self.known) >= PRINCIPALS_MAX and now_s - self._searched_s >= FORGET_INTERVAL_S:
            self._searched_s = now_s
            self.known = {name: quota for name, quota in self.known.items() if not quota.is_full(now_s)}
        if len(self.known) < PRINCIPALS_MAX:
            quota = self.known[name] = self._make(name)
            return quota
        if self._shared is None:
            self._shared = self._make(OTHERS)
        return self._shared

    def go_by(self, rates_of: Callable[[str], Rates]) -> None:
        """Forget those whose rates have changed."""
        self.known = {name: quota for name, quota in self.known.items() if quota.rates == rates_of(name)}
        self._shared = None
