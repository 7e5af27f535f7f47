"""Retention: the leader proposes expiry commands, and every node removes segments of its log that nobody needs.

Apply decides which messages expire and which part of the log is needed, the same on every replica. Nothing expires
while the clocks do not agree on the time. A round removes segments first, also on a full disk; segments that its expiry
makes needless go in the next round. The service keeps no state that a failover could lose. Expiry goes in portions,
each followed by a pause as long as the portion took: producers and consumers get their share of the loop meanwhile.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from cluster.background.join_tokens import remove_expired_join_tokens
from cluster.core.between_entries import between_entries
from cluster.core.core import Core
from cluster.health.log_front import LogFront
from raft.proposals import Applied
from store.commands.retention import CountBytes, Expired, ExpireMessages, Released, ReleaseMessages, SweepIndex
from store.features import FEATURES
from store.log.errors import DiskFull, LogError

logger = logging.getLogger(__name__)

ROWS_PER_COMMAND: Final = 256
"""Maximum number of rows that one command removes. It takes two milliseconds, in which the loop does nothing else."""

PER_COMMAND: Final = 256
"""Maximum number of queues, or topics, in one command. Each has at least one row to remove, so more of them would not
fit ROWS_PER_COMMAND."""

SWEPT_KEYS_PER_COMMAND: Final = 200
"""Number of index keys that one command looks at, which takes one to four milliseconds."""

SWEEP_INTERVAL_S: Final = 3_600.0
"""Seconds between two sweeps of the search index, if anything has expired since the last one."""

SWEEP_TURN_S: Final = 1.0
"""Seconds of one turn of a sweep, which may take hours in all. A pause of the same length and a look at newly expired
messages come between two turns."""

OUTCOMES_BEHIND_MAX: Final = 10_000
"""Number of entries before the needed log whose outcomes may be kept; beyond it outcomes are removed even when no
message expires."""

PAUSE_S_MAX: Final = 0.5
PROGRESS_INTERVAL_S: Final = 10.0
BEHIND_ENTRIES_MIN: Final = 10_000
"""Number of entries left to apply from which on a node logs its progress."""


Found = TypeVar("Found")


@dataclass
class _Removed:
    rows: int = 0
    messages: int = 0
    transactions: int = 0


class RetentionService:
    """Runs the rounds of retention. Use on the event loop only. Call `start` once the Raft node runs."""

    def __init__(self, core: Core) -> None:
        self.log_front = LogFront(core)
        self._core = core
        self._interval_s = core.config.retention_check_ms / 1000
        self._task = core.background.task(
            "retention", "remove what is older than its retention", self._round, self._interval_s
        )
        self._expired_since_sweep = False
        self._all_counted = False
        """A whole walk found no message whose bytes are not counted. There are none later: new ones are counted."""
        self._sweep_due_s = -math.inf
        self._progress_due_s = -math.inf

    def start(self) -> None:
        self._task.start(self._pause_s())

    async def stop(self) -> None:
        await self._task.stop()

    async def _round(self) -> float:
        self._report_progress()
        await self.log_front.look()
        # The index on disk may point at more of the log than the queries say within an entry.
        if await between_entries(self._core):
            self._drop_segments()  # first: the commands that follow may need the room that this makes
        await self._expire_all()
        await self._release_all()
        await self._count_all()
        await remove_expired_join_tokens(self._core)
        await self._sweep_some()
        return self._pause_s()

    def _pause_s(self) -> float:
        under_way = self._core.is_leader() and self._core.state.sweep_is_under_way
        return min(self._interval_s, SWEEP_TURN_S) if under_way else self._interval_s

    # --- the leader: what expires ------------------------------------------------------------------------------

    async def _expire_all(self) -> None:
        """Remove all expired messages and transactions.

        The walk through the queues lets the event loop go on after each step, and continues when the queues that it
        found hold no expired rows any more.
        """
        removed = _Removed()
        async for queues in self._portions(lambda now_ms: self._core.state.expired_queues(now_ms)):
            await self._expire(queues, removed)
        await self._shrink_all(removed)
        await self._expire([], removed)
        if removed.rows or removed.transactions:
            self._expired_since_sweep = True
            logger.info(
                "removed %d messages and %d transactions whose retention is over",
                removed.messages,
                removed.transactions,
            )

    async def _portions(
        self, walk: Callable[[int], Iterator[Found | None]], size: int = PER_COMMAND
    ) -> AsyncIterator[list[Found]]:
        """Yield the findings of a walk in lists of `size`, as long as this node leads and is sure of the time."""
        core = self._core
        portion: list[Found] = []
        for found in walk(core.now_ms()):
            if not core.is_leader() or not core.clock_is_sure():
                return
            if found is None:
                await asyncio.sleep(0)
                continue
            portion.append(found)
            if len(portion) == size:
                yield portion
                portion = []
        if portion:
            yield portion

    async def _expire(self, queues: list[tuple[str, int]], removed: "_Removed") -> None:
        """Propose expiry until these queues hold no expired rows. Without queues: expire deleted topics, transactions
        and old outcomes, until none are left.
        """
        core, state = self._core, self._core.state
        while core.is_leader() and core.clock_is_sure():
            behind = state.log_needed - state.first_outcome
            if not queues and not state.has_expired_others(core.now_ms()) and behind < OUTCOMES_BEHIND_MAX:
                return
            begun_ms = core.steady_ms()
            applied = await core.propose(ExpireMessages(tuple(queues), ROWS_PER_COMMAND))
            expired: Expired = applied.result
            removed.rows += expired.rows
            removed.messages += self._note(applied)
            removed.transactions += expired.transactions
            if not expired.rows and not expired.transactions:
                return  # nothing was due yet by the clock of the entry
            await asyncio.sleep(min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX))
            if queues:
                queues = state.still_expired(queues, core.now_ms())
                if not queues:
                    return

    async def _shrink_all(self, removed: "_Removed") -> None:
        """Remove the oldest messages of topics with more bytes than they keep. All oldest queues of a topic are in one
        command: which messages are the oldest is decided among them. A portion has no more topics than fit one command,
        since all of them are looked at after each.
        """
        topics: list[tuple[str, list[int]]] = []
        before = self._core.state.applied_index + 1
        async for (found,) in self._portions(lambda _: self._core.state.exceeding_topics(ROWS_PER_COMMAND), 1):
            if sum(len(queues) for _, queues in (*topics, found)) > PER_COMMAND:
                await self._shrink(topics, before, removed)
                topics = []
            topics.append(found)
        await self._shrink(topics, before, removed)

    async def _shrink(self, topics: list[tuple[str, list[int]]], before: int, removed: "_Removed") -> None:
        """Propose that these topics lose their oldest messages, until they keep what they should. The look at them, and
        at their queues, began when the entry at `before` was the next to apply.
        """
        core = self._core
        while topics and core.is_leader() and core.clock_is_sure():
            begun_ms = core.steady_ms()
            queues: list[tuple[str, int]] = []
            for name, numbers in topics:
                if len(queues) + len(numbers) <= PER_COMMAND:  # a topic alone has no more
                    queues.extend((name, queue) for queue in numbers)
            applied = await core.propose(ExpireMessages(tuple(queues), ROWS_PER_COMMAND, before))
            expired: Expired = applied.result
            removed.rows += expired.rows
            removed.messages += self._note(applied)
            if not expired.rows:
                return  # another leader was faster
            await asyncio.sleep(min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX))
            before = core.state.applied_index + 1
            topics = core.state.still_exceeding([name for name, _ in topics], ROWS_PER_COMMAND)

    async def _count_all(self) -> None:
        """Count the bytes of messages that were stored before the feature level that counts them was in force."""
        if self._all_counted or not FEATURES.knows("CountBytes", self._core.state.feature_level):
            return
        found_any = False
        async for queues in self._portions(lambda _: self._core.state.uncounted_queues()):
            found_any = True
            await self._count(queues)
        self._all_counted = not found_any and self._core.is_leader() and self._core.clock_is_sure()

    async def _count(self, queues: list[tuple[str, int]]) -> None:
        core = self._core
        while queues and core.is_leader() and core.clock_is_sure():
            begun_ms = core.steady_ms()
            await core.propose(CountBytes(tuple(queues), ROWS_PER_COMMAND))
            await asyncio.sleep(min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX))
            queues = core.state.still_uncounted(queues)

    async def _release_all(self) -> None:
        """Remove rows that nobody needs although their retention is not over (store/state/release.py)."""
        async for topics in self._portions(lambda now_ms: self._core.state.releasable(now_ms)):
            await self._release(topics)
        await self._release([])

    async def _release(self, topics: list[str]) -> None:
        core, state = self._core, self._core.state
        while core.is_leader() and core.clock_is_sure() and (topics or state.has_dropped_timers):
            begun_ms = core.steady_ms()
            released: Released = (await core.propose(ReleaseMessages(tuple(topics), ROWS_PER_COMMAND))).result
            if not released.queues and not released.dropped and not state.has_dropped_timers:
                return  # nothing was due yet by the clock of the entry
            self._expired_since_sweep = True
            await asyncio.sleep(min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX))
            topics = state.still_releasable(topics, core.now_ms())

    def _note(self, applied: Applied) -> int:
        expired: Expired = applied.result
        messages = sum(each.messages for each in expired.queues)
        self._core.metrics.expired_messages.inc(messages)
        return messages

    async def _sweep_some(self) -> None:
        """Do one turn of the sweep of the search index. Begin a sweep when one is due."""
        core = self._core
        now_s = core.steady_ms() / 1000
        if not core.is_leader() or not core.clock_is_sure():
            return
        if not core.state.sweep_is_under_way:
            if not self._expired_since_sweep or now_s < self._sweep_due_s:
                return
            self._expired_since_sweep = False
        self._sweep_due_s = now_s + SWEEP_INTERVAL_S
        while core.is_leader() and core.clock_is_sure():
            begun_ms = core.steady_ms()
            await core.propose(SweepIndex(SWEPT_KEYS_PER_COMMAND))
            if not core.state.sweep_is_under_way or core.steady_ms() / 1000 - now_s >= SWEEP_TURN_S:
                return
            await asyncio.sleep(min((core.steady_ms() - begun_ms) / 1000, PAUSE_S_MAX))

    # --- every node: the log -----------------------------------------------------------------------------------

    def _drop_segments(self) -> None:
        """Remove segments that neither the state nor any node needs, as far as this node's index on disk can do without
        them; the next look removes what a flush brings there meanwhile. No entry may be applied in part.
        """
        core = self._core
        # the log may end before the state's entry: only its own entries can be removed
        needed = min(core.state.log_floor, core.state.applied_index + 1, core.log.synced_index + 1)
        if not core.log.can_drop_before(needed):
            return  # the usual case, checked first: `needed_from` walks through the log's positions
        needed = core.log_pins.first_index(min(needed, core.raft.needed_from()))
        if not core.log.can_drop_before(needed):
            return
        before = core.log.base.index
        try:
            on_disk = core.state.flushed_index + 1
            base = core.log.drop_before(min(needed, on_disk))
            if on_disk < needed:
                core.state.begin_flush()  # never waited for: a slow disk would hold the loop
        except DiskFull as error:
            logger.warning("the log cannot be shortened yet: %s; the next look tries again", error)
            return
        except LogError as error:
            core.fatal(str(error))
        if base.index > before:
            logger.info("removed entries %d to %d of the log: nothing needs them any more", before + 1, base.index)

    def _report_progress(self) -> None:
        """Log the progress of a node that is far behind, because its index is rebuilt or it was away."""
        core = self._core
        applied, last = core.state.applied_index, core.log.last_index
        now_s = core.steady_ms() / 1000
        if last - applied >= BEHIND_ENTRIES_MIN and now_s >= self._progress_due_s:
            self._progress_due_s = now_s + PROGRESS_INTERVAL_S
            logger.info("applied entry %d of %d", applied, last)
