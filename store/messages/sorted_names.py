"""Names in order, for walks and lists that go on behind the last name they have seen."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator


class SortedNames:
    """Each name once, sorted. Adding and removing move pointers only, `after` costs what it returns."""

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
        """ValueError when it is not there."""
        if name not in self:
            raise ValueError(f"no such name: {name}")
        del self._names[bisect_left(self._names, name)]

    def __contains__(self, name: str) -> bool:
        place = bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name

    def after(self, name: str | None, limit: int) -> list[str]:
        """The names behind `name`, which need not be there any more, at most `limit`; None: from the first on."""
        begin = 0 if name is None else bisect_right(self._names, name)
        return self._names[begin : begin + limit]

    def starting(self, name: str, limit: int) -> list[str]:
        """`name` itself, if it is there, and the names behind it, at most `limit`."""
        begin = bisect_left(self._names, name)
        return self._names[begin : begin + limit]
