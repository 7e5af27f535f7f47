"""The rows that RocksDB holds, read so that damage is an error and never looks like the end of the rows."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast

from rocksdict import Rdict

from store.errors import IndexUnreadable
from store.log.errors import REPAIR_ADVICE

_NO_DESCRIPTOR: Final = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))


class StoredRows:
    """Reads a database. Each iterator raises IndexUnreadable when a block cannot be read or its checksum is wrong.

    rocksdict's own iterators over pairs just end there, so wherever they end it is asked whether rows follow.
    """

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self.on_unreadable: Callable[[str], None] = lambda reason: None
        """Called with the reason before IndexUnreadable is raised, unless only a file descriptor was missing: the
        process must end, since other nodes have sound rows."""

    def first_from(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs from `begin` on, in key order."""
        return self._checked(self._database, begin)

    def snapshot(self) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over every pair, in key order, as of this call."""
        return self._checked(cast(Rdict, self._database.snapshot()), b"")

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

    def beginning(self, prefixes: Iterable[bytes]) -> Iterator[bool]:
        """Yield for each prefix whether a key begins with it."""
        try:
            pairs = self._database.iter()
            for prefix in prefixes:
                pairs.seek(prefix)
                found = pairs.valid()
                if not found:
                    pairs.status()
                yield found and pairs.key().startswith(prefix)
        except Exception as error:
            raise self.unreadable(error) from error

    def _checked(self, source: Rdict, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of the database, or of its snapshot, from `begin` on; raise where they end too early."""
        key = begin
        try:
            for pair in cast(Iterator[tuple[bytes, bytes]], source.items(from_key=begin)):
                yield pair
                key = pair[0]
            rest = source.iter()
            rest.seek(key)
            if rest.valid():
                rest.next()
            rest.status()
        except Exception as error:
            raise self.unreadable(error) from error
        if rest.valid() and rest.key() != key:
            raise self.unreadable(RuntimeError(f"the rows after {key.hex()} are left out"))

    def unreadable(self, error: Exception) -> IndexUnreadable:
        """Return the error to raise for an error of rocksdict, and tell of it."""
        lacks_descriptor = any(each in str(error) for each in _NO_DESCRIPTOR)
        advice = "Raise the limit of open files" if lacks_descriptor else REPAIR_ADVICE
        found = IndexUnreadable(self._database.path(), str(error), advice, lacks_descriptor=lacks_descriptor)
        if not lacks_descriptor:
            self.on_unreadable(str(found))
        return found
