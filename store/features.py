"""Feature levels: what a build may send, log, store and hash, so that builds of different versions form one cluster.

Everything that another node, or a later start, has to understand belongs to a level. Level 1 is everything there was
in 0.2.0. A later level names what came with it in `adds`: a struct by its name (`Pop`), a field by `Struct.field`
(`Produce.priority`), anything else by a word of its own that code asks for with `knows`. docs/upgrading.md says how a
level is added; tests/versions/ fails when something is added without one.
"""

import typing
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from store.version import VERSION

FIRST_LEVEL: Final = 1
"""Of every log that names none."""
LEVEL_MAX: Final = 1 << 16
VERSION_LENGTH_MAX: Final = 64
_LEVEL_AT: Final = 2
"""Where in a configuration record the level is, and behind it the version. Never moved: every build must find it."""


class FeatureLevel(NamedTuple):
    """A level, the first version that knows it, and the names of what came with it."""

    number: int
    version: str
    adds: frozenset[str] = frozenset()


LEVELS: Final = (FeatureLevel(1, "0.2.0"),)
"""Ascending, without a gap. Only ever appended to once a level was released."""

FEATURE_LEVEL_MIN: Final = 1
"""The lowest level that this build works at. Older entries of a log are replayed all the same."""


class UnknownFeatureLevel(Exception):
    """A log, or a cluster, is at a level that this build does not work at. The message names the version to start."""


class LevelOf(NamedTuple):
    """The level that a configuration record says, and the version that brought it; empty when the record names none."""

    level: int
    version: str


class Features:
    """A table of levels, and what follows from it. There is one per process, `FEATURES`."""

    def __init__(self, levels: Iterable[FeatureLevel], minimum: int, version: str) -> None:
        """`version` is that of the build."""
        self.set_levels(levels, minimum, version)

    def set_levels(self, levels: Iterable[FeatureLevel], minimum: int, version: str) -> None:
        """Exchange the table. For tests of versions to come, before anything else of the process has looked at it."""
        self.levels = tuple(levels)
        self.minimum = minimum
        self.version = version
        self.maximum = self.levels[-1].number
        self._level_of = {name: level.number for level in self.levels for name in level.adds}
        self._changed: dict[type, bool] = {}

    def level_of(self, name: str) -> int:
        """The level that a struct, a field or another feature belongs to."""
        return self._level_of.get(name, FIRST_LEVEL)

    def knows(self, name: str, level: int) -> bool:
        """Whether a feature may be used at a level: what code asks whose effect is not the mere presence of a field."""
        return level >= self.level_of(name)

    def version_of(self, level: int) -> str:
        """The first version that knows a level of this table."""
        return next(each.version for each in self.levels if each.number == level)

    # --- what may be proposed or sent --------------------------------------------------------------------------

    def needed(self, value: Any) -> int:
        """The level that a struct needs: its own and those of its fields that are not as if they had been left out."""
        if not self._level_of:
            return FIRST_LEVEL
        if isinstance(value, tuple | list):
            return max(map(self.needed, value), default=FIRST_LEVEL)
        if not isinstance(value, msgspec.Struct):
            return FIRST_LEVEL
        kind = type(value).__name__
        level = self.level_of(kind)
        for field in msgspec.structs.fields(value):
            held = getattr(value, field.name)
            if field.required or held != field.default:
                level = max(level, self.level_of(f"{kind}.{field.name}"), self.needed(held))
        return level

    def at(self, value: Any, level: int) -> Any:
        """What to encode at a level instead of `value`: the same without the fields that came later. ValueError for a
        struct that came later itself. At the highest level it is `value`, at no cost.
        """
        if level >= self.maximum:
            return value
        if isinstance(value, tuple | list):
            return [self.at(item, level) for item in value]
        if not isinstance(value, msgspec.Struct) or not self._has_changed(type(value)):
            return value
        kind, config = type(value).__name__, value.__struct_config__
        if self.level_of(kind) > level:
            raise ValueError(f"{kind} belongs to feature level {self.level_of(kind)}, not {level}")
        names = [name for name in value.__struct_fields__ if self.level_of(f"{kind}.{name}") <= level]
        if names != list(value.__struct_fields__[: len(names)]):
            raise ValueError(f"{kind} has a field of level {level} behind one of a later level")
        items = [self.at(getattr(value, name), level) for name in names]
        return items if config.tag is None else [config.tag, *items]

    def _has_changed(self, kind: type) -> bool:
        """Whether the struct, or anything that it may hold, is named by a later level."""
        known = self._changed.get(kind)
        if known is None:
            self._changed[kind] = False  # until it is known: structs that hold themselves end here
            held = {part for hint in typing.get_type_hints(kind).values() for part in _structs_in(hint)}
            named = {kind.__name__, *(f"{kind.__name__}.{name}" for name in kind.__struct_fields__)}  # type: ignore[attr-defined]
            known = not named.isdisjoint(self._level_of) or any([self._has_changed(part) for part in held])
            self._changed[kind] = known
        return known

    # --- what may be read --------------------------------------------------------------------------------------

    def require_known(self, found: LevelOf, what: str) -> None:
        """UnknownFeatureLevel when `what`, such as `this log`, is above what this build knows."""
        if found.level > self.maximum:
            version = f"KeelMQ {found.version} and later" if found.version else "a later KeelMQ"
            raise UnknownFeatureLevel(
                f"{what} needs feature level {found.level}, which {version} know; this is KeelMQ {self.version}, "
                f"which knows {self.describe()}. Nothing was changed. Start that version, or a later one, here; "
                "docs/upgrading.md"
            )

    def require_supported(self, found: LevelOf, what: str) -> None:
        """As `require_known`, and UnknownFeatureLevel when `what` is below what this build works at."""
        self.require_known(found, what)
        if found.level < self.minimum:
            raise UnknownFeatureLevel(
                f"{what} is at feature level {found.level}; this is KeelMQ {self.version}, which works at "
                f"{self.describe()}. Nothing was changed. Start the version before this one on all nodes, raise the "
                f"level to {self.minimum} with 'keelmq cluster upgrade', and then start this one; docs/upgrading.md"
            )

    def describe(self) -> str:
        """The levels of this build, in words."""
        return describe(self.minimum, self.maximum)


def describe(minimum: int, maximum: int) -> str:
    """A range of levels, in words."""
    return str(maximum) if minimum == maximum else f"{minimum} to {maximum}"


def read_level(configuration: bytes) -> LevelOf:
    """The level in a configuration record, whatever else is in it: also of a version that this build cannot read.
    ValueError when it is no such record.
    """
    try:
        fields = msgspec.msgpack.decode(configuration)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, list):
        raise ValueError("not an array")
    if len(fields) <= _LEVEL_AT:
        return LevelOf(FIRST_LEVEL, "")
    level, version = (*fields, "")[_LEVEL_AT : _LEVEL_AT + 2]
    if type(level) is not int or not FIRST_LEVEL <= level <= LEVEL_MAX or not isinstance(version, str):
        raise ValueError("no feature level where one belongs")
    return LevelOf(level, version[:VERSION_LENGTH_MAX])


def _structs_in(hint: Any) -> Iterable[type]:
    """Every struct that a type names, in unions, tuples and annotations too."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in typing.get_args(hint):
        yield from _structs_in(part)


FEATURES: Final = Features(LEVELS, FEATURE_LEVEL_MIN, VERSION)
