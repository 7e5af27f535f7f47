"""Caches of entries in memory: the tail of the log, and entries recently read from disk."""

from __future__ import annotations

from collections import OrderedDict

from store.log.record import Entry

ENTRY_OVERHEAD_BYTES = 256  # memory of an entry beside its payload: tuple, integers, dictionary slot

POSITION_MAX = (1 << 63) - 1


class TailCache:
    """The newest entries, up to `capacity_bytes`; always a contiguous range that ends with the log's last entry."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: dict[int, Entry] = {}
        self._bytes = 0
        self._oldest = 0

    def get(self, index: int) -> Entry | None:
        return self._entries.get(index)

    @property
    def first_position(self) -> int:
        """Log position of the oldest cached entry; POSITION_MAX, beyond any log, when the cache is empty."""
        oldest = self._entries.get(self._oldest)
        return POSITION_MAX if oldest is None else oldest.position

    def append(self, entry: Entry) -> None:
        entries = self._entries
        if not entries:
            self._oldest = entry.index
        entries[entry.index] = entry
        self._bytes += len(entry.payload) + ENTRY_OVERHEAD_BYTES
        while self._bytes > self._capacity_bytes and entries:
            oldest = entries.pop(self._oldest)
            self._oldest += 1
            self._bytes -= len(oldest.payload) + ENTRY_OVERHEAD_BYTES

    def truncate(self, index: int) -> None:
        """Forget entry `index` and all after it."""
        for i in range(self._oldest + len(self._entries) - 1, max(index, self._oldest) - 1, -1):
            self._bytes -= len(self._entries.pop(i).payload) + ENTRY_OVERHEAD_BYTES


class ReadCache:
    """Entries read from disk, up to `capacity_bytes`, evicted least recently used first.

    Larger entries are not kept.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._bytes = 0

    def get(self, index: int) -> Entry | None:
        entry = self._entries.get(index)
        if entry is not None:
            self._entries.move_to_end(index)
        return entry

    def add(self, entry: Entry) -> None:
        size = len(entry.payload) + ENTRY_OVERHEAD_BYTES
        if size > self._capacity_bytes or entry.index in self._entries:
            return
        self._entries[entry.index] = entry
        self._bytes += size
        while self._bytes > self._capacity_bytes:
            _, evicted = self._entries.popitem(last=False)
            self._bytes -= len(evicted.payload) + ENTRY_OVERHEAD_BYTES

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0
