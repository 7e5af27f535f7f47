"""Holders of the front of this node's log: reports which objects need it, since when, and how many bytes, and raises
an alarm.

The holders are looked up every `--retention-check-ms` and kept, so requests and scrapes cost nothing. docs/retention.md
has the table of holders.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Literal

from prometheus_client.core import GaugeMetricFamily

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.http.responses import Response
from store.messages.log_references import LOG_RANGE_BYTES, Holder
from store.state.log_holders import LogHolder

LogHolderKind = Literal["message", "retry", "dead_letter", "scheduled", "transaction", "peer", "backup"]


class LogHolderView(Response, kw_only=True, frozen=True):
    """An object that needs the log from the entry at `raft_index` on, since `since_ms`. The last `bytes` of the log are
    kept for it, or for what was stored just before. `subject` is its topic, group, transaction id, node id or backup
    id, if known."""

    kind: LogHolderKind
    subject: str | None
    raft_index: int
    since_ms: int | None
    bytes: int


_OF_STATE: Final[dict[Holder, LogHolderKind]] = {
    Holder.MESSAGE: "message",
    Holder.RETRY: "retry",
    Holder.DEAD_LETTER: "dead_letter",
    Holder.SCHEDULED: "scheduled",
    Holder.TRANSACTION: "transaction",
}

PEER_BYTES_MIN: Final = LOG_RANGE_BYTES
"""Minimum bytes by which a reported node is behind: every node is a little behind all the time."""

REMEDIES: Final[dict[LogHolderKind, str]] = {
    "message": "messages go when their retention is over: shorten the retention of the topic, or delete it",
    "retry": "the group has not processed its redelivered messages: start its consumers, or delete the group",
    "dead_letter": "dead letters are kept for 72 hours, or until 15 minutes after their replay: replay them, or delete "
    "the group with its dead letters",
    "scheduled": "the message is not due yet: cancel it, or delete its topic",
    "transaction": "the transaction is prepared, or was discarded: commit it or roll it back",
    "peer": "the node lags, and gets a snapshot once it is behind by more than --retain-behind-bytes",
    "backup": "the backup is being read from this node, and is given up after a minute without a request: end the "
    "command that reads it",
}


class LogFront:
    """Owns the list of holders, sorted by the bytes that they hold, largest first. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.holders: tuple[LogHolderView, ...] = ()
        core.metrics.add_gauges(self._gauges)

    async def look(self) -> None:
        """Find the present holders of the log, by a walk through the queues that lets the event loop go on after each
        step.
        """
        walk = self._core.state.find_log_holders()
        while True:
            try:
                next(walk)
            except StopIteration as end:
                of_state: list[LogHolder] = end.value
                break
            await asyncio.sleep(0)
        found = [*self._of_state(of_state), *self._of_peers(), *self._of_backups()]
        self.holders = tuple(sorted(found, key=lambda each: (-each.bytes, each.raft_index)))

    def _of_state(self, holders: list[LogHolder]) -> Iterator[LogHolderView]:
        for each in holders:
            raft_index, since_ms = self._begins(each)
            yield LogHolderView(
                kind=_OF_STATE[each.holder],
                subject=each.subject,
                raft_index=raft_index,
                since_ms=since_ms,
                bytes=self._bytes_from(each.raft_index),
            )

    def _begins(self, holder: LogHolder) -> tuple[int, int | None]:
        """Return from which entry on the subject needs the log, and since when. Where its own first block lies in
        another entry than the one that is known of it, these are of the first block of anything in the same 4 MiB.
        """
        log, own = self._core.log, holder.own
        if own is None or not max(holder.raft_index, log.first_index) <= own.raft_index <= log.last_index:
            return holder.raft_index, holder.since_ms
        is_its_entry = log.position_of(own.raft_index) == own.position
        return (own.raft_index, own.at_ms) if is_its_entry else (holder.raft_index, holder.since_ms)

    def _of_peers(self) -> Iterator[LogHolderView]:
        """Yield, on a leader, the node that is furthest behind, if the log is kept for it."""
        raft, log = self._core.raft, self._core.log
        needed = raft.needed_from()
        peers = {node_id: peer.match_index for node_id, peer in raft.peers.items()}
        if needed > log.synced_index or not peers:
            return
        last = min(peers, key=lambda node_id: peers[node_id])
        held_bytes = self._bytes_from(needed)
        if held_bytes < PEER_BYTES_MIN:
            return
        yield LogHolderView(kind="peer", subject=str(last), raft_index=needed, since_ms=None, bytes=held_bytes)

    def _of_backups(self) -> Iterator[LogHolderView]:
        """Yield the backup under way that needs most of the log."""
        pin = self._core.log_pins.first()
        if pin is not None:
            held_bytes = self._bytes_from(pin.first_index)
            yield LogHolderView(
                kind="backup", subject=pin.key, raft_index=pin.first_index, since_ms=pin.since_ms, bytes=held_bytes
            )

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm when another holder than messages within their retention alone holds more bytes of the log
        than log_held_alarm_bytes.
        """
        first = self.holders[0] if self.holders else None
        of_messages = next((each.bytes for each in self.holders if each.kind == "message"), 0)
        alone = first.bytes - of_messages if first is not None else 0
        if first is not None and alone > self._core.config.log_held_alarm_bytes:
            yield Condition(
                "log_held",
                "warning",
                f"{_name(first)} holds {alone} bytes of the log that nothing else needs: {REMEDIES[first.kind]}",
            )

    def _bytes_from(self, raft_index: int) -> int:
        log = self._core.log
        first = max(raft_index, log.first_index)
        return log.end_position - log.position_of(first) if first <= log.last_index else 0

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        held = GaugeMetricFamily(
            "keelmq_log_held_bytes",
            "Bytes of log from the first entry on that a kind of holder needs",
            labels=["holder"],
        )
        age = GaugeMetricFamily(
            "keelmq_log_held_seconds", "How long ago that entry was applied; 0 without one", labels=["holder"]
        )
        by_kind = {each.kind: each for each in self.holders}
        for kind in REMEDIES:
            found = by_kind.get(kind)
            held.add_metric([kind], found.bytes if found is not None else 0)
            since_ms = found.since_ms if found is not None else None
            age.add_metric([kind], max(self._core.now_ms() - since_ms, 0) / 1000 if since_ms is not None else 0)
        yield held
        yield age


def _name(holder: LogHolderView) -> str:
    names: dict[LogHolderKind, str] = {
        "message": "topic",
        "retry": "a redelivered message of group",
        "dead_letter": "a dead letter of group",
        "scheduled": "a scheduled message of topic",
        "transaction": "transaction",
        "peer": "node",
        "backup": "backup",
    }
    subject = holder.subject if holder.subject is not None else "(not found)"
    if holder.since_ms is None:
        return f"{names[holder.kind]} {subject}"
    since = datetime.fromtimestamp(holder.since_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{names[holder.kind]} {subject}, of {since},"
