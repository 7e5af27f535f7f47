"""The rows that RocksDB holds, read so that damage is an error and never looks like the end of the rows."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from rocksdict import Rdict, RdictIter

from store.errors import IndexUnreadable

_NO_DESCRIPTOR: Final = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))


class StoredRows:
    """Reads a database. Each iterator raises IndexUnreadable when a block cannot be read or its checksum is wrong."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self.on_unreadable: Callable[[str], None] = lambda reason: None
        """Called with the reason before IndexUnreadable is raised, unless only a file descriptor was missing: the
        process must end, since other nodes have sound rows."""

    def first_from(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs from `begin` on, in key order. A pair that is committed meanwhile may be seen.

        The pairs of rocksdict, which cost least, just end where they cannot be read. An iterator goes on behind them,
        which tells its status.
        """
        pair: tuple[bytes, bytes] | None = None
        try:
            for pair in cast(Iterator[tuple[bytes, bytes]], self._database.items(from_key=begin)):
                yield pair
        except Exception as error:  # rocksdict raises nothing narrower
            raise self.unreadable(error) from error
        rest = self._database.iter()
        rest.seek(begin if pair is None else pair[0] + b"\0")
        yield from self._onward(rest)

    def snapshot(self) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over every pair, in key order, as of this call."""
        pairs = self._database.iter()
        pairs.seek(b"")  # from here on it reads what there is now; a snapshot of rocksdict makes its iterators later
        return self._onward(pairs)

    def _onward(self, pairs: RdictIter) -> Iterator[tuple[bytes, bytes]]:
        try:
            while pairs.valid():
                yield pairs.key(), pairs.value()
                pairs.next()
            pairs.status()
        except Exception as error:
            raise self.unreadable(error) from error

    def last_before(self, end: bytes, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of begin <= key < end, from the greatest key down."""
        try:
            pairs = self._database.iter()  # of `items` the first pair costs twice as much
            pairs.seek_for_prev(end)
            while pairs.valid():
                key, value = pairs.key(), pairs.value()
                if key < begin:
                    return
                if key < end:
                    yield key, value
                pairs.prev()
            pairs.status()  # raises if the pairs ended because they cannot be read
        except Exception as error:
            raise self.unreadable(error) from error

    def beginning(self, prefixes: Sequence[bytes]) -> list[bool]:
        """Return for each prefix whether a key begins with it."""
        found: list[bool] = []
        try:
            pairs = self._database.iter()
            for prefix in prefixes:
                pairs.seek(prefix)
                pairs.status()
                found.append(pairs.valid() and pairs.key().startswith(prefix))
        except Exception as error:
            raise self.unreadable(error) from error
        return found

    def unreadable(self, error: Exception) -> IndexUnreadable:
        """Return the error to raise for an error of rocksdict, and tell of it. Raises any other error itself."""
        if type(error) is not Exception:  # what is no error of reading: the database is closed, memory is short
            raise error
        text = str(error)
        lacks_descriptor = any(each in text for each in _NO_DESCRIPTOR)
        found = IndexUnreadable(self._database.path(), text, lacks_descriptor=lacks_descriptor)
        if not lacks_descriptor:
            self.on_unreadable(str(found))
        return found
