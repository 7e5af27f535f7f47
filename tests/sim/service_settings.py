"""Configuration of the services of a seed's nodes, and the pace of their clients and timers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from unittest import mock

import cluster.background.retention_service
import cluster.groups.session_expiry
import cluster.transactions.check_api
import cluster.transactions.check_service
import store.groups.pops
import store.messages.topics
import store.state.expiry
import store.state.machine
import store.state.queries
import store.state.release
from store.limits import DEFAULT_RETENTION_MS, TRANSACTION_RETENTION_MS


@dataclass(frozen=True)
class ServiceSettings:
    """Configuration of the services. Defaults are the product's, apart from those that would take too long."""

    checks: bool = False
    """True if somebody answers checks; otherwise transactions may stay undecided."""
    members: bool = False
    """True if consumer groups have members."""
    poppers: bool = False
    """True if there are pop consumers."""
    check_immunity_ms: int = 6_000
    check_interval_ms: int = 30_000
    check_max: int = 15
    webhook_timeout_ms: int = 300
    request_timeout_ms: int = 2_000
    session_timeout_ms: int = 1_000
    pace: "Pace | None" = None
    retention_ms: int | None = None
    """Retention of the clients' topics; the default is never over in a run."""
    own_retention_ms: int = DEFAULT_RETENTION_MS
    """Retention of system topics, and of the groups' own topics."""
    transaction_retention_ms: int = TRANSACTION_RETENTION_MS
    retention_check_ms: int = 10_000
    log_range_bytes: int = 4 * 1024
    retention_bytes: int | None = None
    """Retention of the clients' topics in bytes."""
    log_retention_bytes: int | None = None
    purges: bool = False
    """True if topics are purged and limited in bytes while everything goes on."""

    @property
    def messages_expire(self) -> bool:
        """True when some messages may be gone before every consumer has read them."""
        limits = (self.retention_ms, self.retention_bytes, self.log_retention_bytes)
        return self.purges or limits != (None, None, None) or self.own_retention_ms != DEFAULT_RETENTION_MS

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name, value in (
                (store.messages.topics, "DEFAULT_RETENTION_MS", self.own_retention_ms),
                (store.state.expiry, "TRANSACTION_RETENTION_MS", self.transaction_retention_ms),
                (store.state.queries, "TRANSACTION_RETENTION_MS", self.transaction_retention_ms),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            if self.pace is not None:
                stack.enter_context(self.pace.installed())
            yield


@dataclass(frozen=True)
class Pace:
    """Replacements of constants of the product that are too slow for a run of some seconds."""

    scan_interval_s: float
    lease_ms: int
    origin_seen_ms: int
    origin_grace_ms: int
    webhook_retry_ms: int
    webhooks_at_once: int
    expiry_interval_s: float
    pop_ack_kept_ms: int
    pop_ack_swept_ms: int
    pop_held_max: int
    rows_per_expiry: int = 16
    keys_per_sweep: int = 50
    sweep_interval_s: float = 0.5
    outcomes_removed: int = 8
    replayed_kept_ms: int = 300

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, name, value in (
                (cluster.transactions.check_service, "SCAN_INTERVAL_S", self.scan_interval_s),
                (cluster.transactions.check_service, "LEASE_MS", self.lease_ms),
                (cluster.transactions.check_service, "ORIGIN_SEEN_MS", self.origin_seen_ms),
                (cluster.transactions.check_service, "ORIGIN_GRACE_MS", self.origin_grace_ms),
                (cluster.transactions.check_api, "WEBHOOK_RETRY_MS", self.webhook_retry_ms),
                (cluster.transactions.check_api, "WEBHOOKS_AT_ONCE_MAX", self.webhooks_at_once),
                (cluster.groups.session_expiry, "EXPIRY_INTERVAL_S", self.expiry_interval_s),
                (cluster.background.retention_service, "ROWS_PER_COMMAND", self.rows_per_expiry),
                (cluster.background.retention_service, "SWEPT_KEYS_PER_COMMAND", self.keys_per_sweep),
                (cluster.background.retention_service, "SWEEP_INTERVAL_S", self.sweep_interval_s),
                (store.state.machine, "OUTCOMES_REMOVED_MIN", self.outcomes_removed),
                (store.state.release, "REPLAYED_KEPT_MS", self.replayed_kept_ms),
                (store.groups.pops, "POP_ACK_KEPT_MS", self.pop_ack_kept_ms),
                (store.groups.pops, "POP_ACK_SWEPT_MS", self.pop_ack_swept_ms),
                (store.groups.pops, "POP_HELD_MAX", self.pop_held_max),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            yield


def draw_service_settings(random: Random) -> ServiceSettings:
    """Draw the settings. Checks and members are not in every seed: their cost is better spent on other
    interleavings.
    """
    return ServiceSettings(
        checks=random.random() < 0.5,
        members=random.random() < 0.4,
        check_immunity_ms=random.choice((0, 300, 1_000)),
        check_interval_ms=random.choice((20, 60, 200)),
        check_max=random.choice((15, 15, 3)),
        webhook_timeout_ms=random.choice((50, 300)),
        request_timeout_ms=random.choice((200, 2_000, 10_000)),
        session_timeout_ms=random.choice((1_000, 1_500)),
        pace=Pace(
            scan_interval_s=random.choice((0.05, 0.2)),
            lease_ms=random.choice((100, 600)),
            origin_seen_ms=500,
            origin_grace_ms=random.choice((20, 200)),
            webhook_retry_ms=random.choice((20, 300)),
            webhooks_at_once=random.choice((1, 4)),
            expiry_interval_s=random.choice((0.05, 0.3)),
            pop_ack_kept_ms=random.choice((100, 1_000)),
            pop_ack_swept_ms=random.choice((1, 500)),
            pop_held_max=random.choice((10, 1_000)),
        ),
        retention_ms=random.choice((None, None, 800, 2_500)),
        retention_check_ms=random.choice((30, 200)),
        log_range_bytes=random.choice((64, 512, 4 * 1024)),
        poppers=random.random() < 0.4,
        own_retention_ms=random.choice((DEFAULT_RETENTION_MS, DEFAULT_RETENTION_MS, 1_000, 3_000)),
        transaction_retention_ms=random.choice((TRANSACTION_RETENTION_MS, TRANSACTION_RETENTION_MS, 1_200, 4_000)),
        retention_bytes=random.choice((None, None, 3_000, 20_000)),
        log_retention_bytes=random.choice((None, None, 30_000, 100_000)),
    )
