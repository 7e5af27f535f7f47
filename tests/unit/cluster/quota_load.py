"""Ten principals that ask for as much as they can under equal quotas, on a clock of our own, and a judge of what they
got.

Each has between one and forty clients, which send as soon as they may: requests with bodies, for answers of other
sizes. One client of each keeps a session. The node itself takes whatever comes.
"""

import heapq
from collections import Counter
from random import Random
from typing import Final, NamedTuple

from cluster.budgets.quotas import Quotas
from cluster.problems import Problem
from cluster.process.quota_file import QuotaSettings, Rates

KIB: Final = 1 << 10
SETTINGS: Final = QuotaSettings(default=Rates(requests_per_s=50, in_bytes_per_s=64 * KIB, out_bytes_per_s=128 * KIB))
PRINCIPALS: Final = tuple(f"user-{number}" for number in range(10))
LASTS_S: Final = 30.0
HEARTBEAT_S: Final = 2.0
SHARE_TOLERANCE: Final = 0.1
CLIENTS: Final = sum(1 + 4 * number for number in range(10))
"""Number of clients. One that waits as it is told comes back about once for each request that is served, or once a
second."""


class Kind(NamedTuple):
    """Kind of a principal's requests, by which one of its quotas is the tight one."""

    in_bytes: int
    out_bytes: int
    tight: str


KINDS: Final = (
    Kind(100, 100, "requests_per_s"),
    Kind(40 * KIB, 100, "in_bytes_per_s"),
    Kind(0, 300 * KIB, "out_bytes_per_s"),
)


class Clock:
    """A steady clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Got(NamedTuple):
    """Shares that one run gave to each principal, in units of its tight quota, and what went wrong meanwhile."""

    shares: dict[str, float]
    """Ratio of what the principal got to its quota, by name."""
    lost_heartbeats: int
    misled: int
    """Number of lone clients that waited as they were told, and were refused all the same."""
    series: dict[str, float]
    refused: Counter[str]
    served: Counter[str]


def run(kind: Kind, seed: int) -> Got:
    """Let them send for LASTS_S, while the settings are read again and strangers come and go."""
    rng, clock = Random(seed), Clock()
    quotas = Quotas(SETTINGS, clock)
    clients = [name for number, name in enumerate(PRINCIPALS) for _ in range(1 + 4 * number)]
    due = [(clock() + rng.random() / 100, ordinal) for ordinal in range(len(clients))]
    due += [(clock() + HEARTBEAT_S * rng.random(), -1 - number) for number in range(len(PRINCIPALS))]
    heapq.heapify(due)
    got, refused, served = Counter[str](), Counter[str](), Counter[str]()
    lost_heartbeats = misled = 0
    waited: set[int] = set()
    ends_s, reads_s = clock() + LASTS_S, clock()
    full = getattr(SETTINGS.default, kind.tight) * LASTS_S
    while due[0][0] < ends_s and max(got.values(), default=0) < 2 * full:
        clock.now_s, ordinal = heapq.heappop(due)
        if clock() >= reads_s:
            reads_s += 1.0
            quotas.use(SETTINGS)
        quotas.of_address(f"10.0.0.{rng.randrange(1_000)}").begin(clock(), 0)
        name = clients[ordinal] if ordinal >= 0 else PRINCIPALS[-1 - ordinal]
        quota = quotas.of_user(name)
        after_s = HEARTBEAT_S
        try:
            quota.begin(clock(), kind.in_bytes if ordinal >= 0 else 0, keeps_session=ordinal < 0)
        except Problem as problem:
            refused[name] += 1
            if ordinal < 0:
                lost_heartbeats += 1
            else:
                misled += ordinal in waited and clients.count(name) == 1
                waited.add(ordinal)
                after_s = problem.extra["retry_after_ms"] / 1000 + (rng.random() / 50 if ordinal else 0.0)
        else:
            waited.discard(max(ordinal, 0))  # a heartbeat may take what a client was told to wait for
            if ordinal >= 0:
                served[name] += 1
                quota.sent(clock(), kind.out_bytes)
                got[name] += {"requests_per_s": 1, "in_bytes_per_s": kind.in_bytes}.get(kind.tight, kind.out_bytes)
                after_s = 0.001 + rng.random() / 1_000
        heapq.heappush(due, (clock() + after_s, ordinal))
    series = {
        sample.labels["principal"]: sample.value
        for metric in quotas.counters()
        for sample in metric.samples
        if "principal" in sample.labels
    }
    return Got({name: got[name] / full for name in PRINCIPALS}, lost_heartbeats, misled, series, refused, served)


def judge(got: Got) -> str | None:
    """Return what is wrong with a run; None when nothing is."""
    for name, share in got.shares.items():
        if abs(share - 1) > SHARE_TOLERANCE:
            return f"{name} got {share:.3f} of its share"
    if got.lost_heartbeats:
        return f"{got.lost_heartbeats} heartbeats were refused"
    if got.misled:
        return f"{got.misled} clients that waited as they were told were refused again"
    served, refused = sum(got.served.values()), sum(got.refused.values())
    if refused > 1.5 * served + CLIENTS * LASTS_S:
        return f"{refused} requests were refused for {served} that were served"
    if got.series != dict(got.refused):
        return f"the metrics count {got.series}, and {dict(got.refused)} were refused"
    return None
