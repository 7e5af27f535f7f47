"""One backup under way: the state as of its beginning, then the log up to that entry, frame by frame."""

import asyncio
from typing import Final

from cluster import VERSION
from cluster.core.core import Core
from cluster.limits import LOG_BYTES_DEFAULT
from cluster.problems import Problem
from store.features import FEATURES
from store.log.errors import LogTruncated
from store.snapshots.backup_frames import FORMAT, LOG, STATE, Begin, FrameEncoder

STATE_PORTIONS: Final = 8
"""Portions of the state (128 KiB each) in one frame; the event loop goes on between them."""


class BackupStream:
    """Makes the frames of one backup. Its owner keeps the log from `first_index` on until the stream is dropped.

    Frames are asked for in their order; the last one can be asked for again.
    """

    def __init__(self, core: Core) -> None:
        """Begin with the state as it is now."""
        self._core = core
        self._encoder = FrameEncoder()
        self._lock = asyncio.Lock()
        self._reader = reader = core.raft.read_state()
        self._next_record = self.first_index = reader.base.index + 1
        self._portions: list[bytes] = []
        """Portions of the state that were read and are in no frame yet: a request may be given up in between."""
        self._state_is_read = False
        self.begin = Begin(
            format=FORMAT,
            cluster_id=core.config.cluster_id,
            cluster_uid=core.state.cluster_uid,
            node_id=core.raft.node_id,
            version=VERSION,
            feature_level=core.state.feature_level,
            feature_version=FEATURES.version_of(core.state.feature_level),
            created_ms=core.wall_ms(),
            index=reader.index,
            term=core.state.applied_term,
            state_hash=reader.state_hash,
            state_format=reader.format,
            base_position=reader.base.position,
            base_index=reader.base.index,
            base_term=reader.base.term,
            estimated_pairs=reader.estimated_pairs,
            log_bytes=core.log.end_position - reader.base.position,
        )
        self._last = self._encoder.begin(self.begin)
        self.is_whole = False
        """True when the end has been made: whoever has all frames has a backup."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all frames so far."""
        return self._encoder.bytes

    async def frame(self, number: int) -> bytes:
        """Return the frame. Raises Problem invalid_request for any but the last one and the next, log_range_removed
        when the backup has to be begun anew, and Problem overloaded.
        """
        async with self._lock:
            last = self._encoder.frames - 1
            if number == last + 1 and not self.is_whole:
                self._last = await self._make()
            elif number != last:
                after = "" if self.is_whole else f", or the next one, {last + 1}"
                raise Problem("invalid_request", f"the frame must be the last one, {last}{after}")
            return self._last

    async def _make(self) -> bytes:
        if not self._state_is_read:
            await self._read_portions()
            if self._portions:
                state = b"".join(self._portions)
                self._portions.clear()
                return self._encoder.frame(STATE, state)
            self._state_is_read = True
        index = self.begin.index
        if self._next_record <= index:
            try:
                records, following = await self._core.reads.records(self._next_record, index, LOG_BYTES_DEFAULT)
            except LogTruncated as error:
                raise Problem("log_range_removed", f"{error}; begin another backup") from None
            self._next_record = following
            return self._encoder.frame(LOG, records)
        self.is_whole = True
        return self._encoder.end(self._reader.pairs_read, self._reader.checksum)

    async def _read_portions(self) -> None:
        """Read portions of the state until a frame has enough of them, or there are no more."""
        while len(self._portions) < STATE_PORTIONS:
            portion = self._reader.next_portion()
            if not portion:
                break
            self._portions.append(portion)
            await asyncio.sleep(0)
