"""Sorted names, for walks and listings that continue after the last name they have seen."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator


class SortedNames:
    """A sorted set of names. Adding and removing only move pointers; `after` costs as much as it returns."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = sorted(set(names))

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        if name not in self:
            insort(self._names, name)

    def remove(self, name: str) -> None:
        """Remove a name. Raises ValueError when it is not in the set."""
        if name not in self:
            raise ValueError(f"no such name: {name}")
        del self._names[bisect_left(self._names, name)]

    def __contains__(self, name: str) -> bool:
        place = bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name

    def after(self, name: str | None, limit: int) -> list[str]:
        """Return at most `limit` names after `name`, which need not be in the set any more; None starts at the first
        name.
        """
        begin = 0 if name is None else bisect_right(self._names, name)
        return self._names[begin : begin + limit]
