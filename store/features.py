"""Feature levels: what a build may send, log, store and hash, so that builds of different versions form one cluster.

Everything that another node, or a later start, has to understand belongs to a level. Level 1 is everything that 0.2.0
had. A later level lists its additions in `adds`: a struct by its name (`Pop`), a field as `Struct.field`
(`Produce.priority`), a word of a field as `Struct.field.word`, any other feature by a name that code queries with
`knows`. docs/upgrading.md says how a level is added; tests/versions/ fails when something is added without a level.
"""

import typing
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from store.version import VERSION

FIRST_LEVEL: Final = 1
"""The level of every log that names no level."""
LEVEL_MAX: Final = 1 << 16
VERSION_LENGTH_MAX: Final = 64
_LEVEL_AT: Final = 2
"""Index of the level in a configuration record; the version follows the level. This never changes: every build must
find the level.
"""


class FeatureLevel(NamedTuple):
    """A feature level: its number, the first version that knows it, and the names of the features it added."""

    number: int
    version: str
    adds: frozenset[str] = frozenset()


LEVELS: Final = (
    FeatureLevel(1, "0.2.0"),
    FeatureLevel(
        2,
        "0.3.0",
        frozenset(
            {
                *("PutUser", "UserPut", "DeleteUser", "UserDeleted", "Rule", "Token", "User", "store.index.keys.USER"),
                *("PutTopic.retention_bytes", "TopicInfo.retention_bytes", "_Record.retention_bytes"),
                *("PutSettings.log_retention_bytes", "Settings.log_retention_bytes"),
                *("rows_hash_summed", "retention-bytes"),
                *("ExpireMessages.by_bytes_before", "CountBytes", "BytesCounted", "PurgeTopic", "TopicPurged"),
                *("store.limits.RETENTION_UNLIMITED_BYTES", "store.limits.LOG_TIMES_FORGOTTEN_MAX"),
                *(
                    f"store.index.retention_keys.{name}"
                    for name in ("PURGED_QUEUES", "LOG_TIMES", "_QUEUE_END", "_END_ALONE")
                ),
                *(f"store.index.retention_keys.{name}" for name in ("_PURGED", "_TIME")),
                *(f"{struct}.principal" for struct in ("TransactionRecord", "TimelineEvent", "Commit", "TakenBack")),
                *("_Header.principals", "Outcome.principals", "RedeliveryEvent.principal", "Configuration.principal"),
                "store.limits.PRINCIPAL_CHARACTERS_MAX",
                *("Event.filter", "Outcome.filters", "Event.type.RESET", "acks-begin-at-kept-messages"),
                "Event.type.PURGE",
                *("timers-note-only-their-own-transaction", "cancelled-again-is-remembered-anew"),
                *("ids-of-messages-keep-no-batch", "redeliveries-note-only-their-own-message"),
                *("Build.commit", "Vitals.is_drained"),
                *("PauseGroup", "GroupPauseSet", "GroupPause", "GroupRecord.pause", "GroupView.pause"),
                *("Event.type.GROUP_PAUSE", "Event.type.GROUP_RESUME", "Event.type.TOPIC_DELETE"),
            }
        ),
    ),
)
"""All levels, ascending and without a gap. A released level is never changed; new levels are only appended."""

FEATURE_LEVEL_MIN: Final = 1
"""The lowest level that this build works at. Log entries of lower levels are still replayed."""


class UnknownFeatureLevel(Exception):
    """Level of a log or a cluster at which this build does not work. The message names the version to start."""


class LevelOf(NamedTuple):
    """The level that a configuration record names, and the version that introduced it; `version` is empty when none is
    named.
    """

    level: int
    version: str


class _Layout(NamedTuple):
    """The fields of a struct that a level knows."""

    fields: tuple[str, ...]
    nested: tuple[int, ...]
    """Places of the fields that may hold a struct which a later level changes."""


class Features:
    """A table of levels, with the lookups derived from it. There is one per process, `FEATURES`."""

    def __init__(self, levels: Iterable[FeatureLevel], minimum: int, version: str) -> None:
        """Set the table; `version` is the version of the build."""
        self.set_levels(levels, minimum, version)

    def set_levels(
        self, levels: Iterable[FeatureLevel], minimum: int, version: str, *, of_code: Iterable[FeatureLevel] = ()
    ) -> None:
        """Replace the table. `of_code` are the levels of the code, when the table shall end before them.

        Only for tests of other versions, before anything else in the process has read the table.
        """
        self.levels = tuple(levels)
        self.minimum = minimum
        self.version = version
        self.maximum = self.levels[-1].number
        self._level_of = {name: level.number for level in tuple(of_code) or self.levels for name in level.adds}
        self._named_maximum = max(self._level_of.values(), default=FIRST_LEVEL)
        self._changed: dict[type, bool] = {}
        self._layouts: dict[tuple[type, int], _Layout] = {}

    def level_of(self, name: str) -> int:
        """Return the level that a struct, a field or another feature belongs to."""
        return self._level_of.get(name, FIRST_LEVEL)

    def knows(self, name: str, level: int) -> bool:
        """Return whether a feature may be used at a level. Code asks this when a feature is more than the presence of a
        field.
        """
        return level >= self.level_of(name)

    def version_of(self, level: int) -> str:
        """Return the first version that knows a level of this table."""
        return next(each.version for each in self.levels if each.number == level)

    # --- what may be proposed or sent --------------------------------------------------------------------------

    def needed(self, value: Any) -> int:
        """Return the level that a struct needs: the highest of its own level and the levels of its fields that are
        required or differ from their default.
        """
        if not self._level_of:
            return FIRST_LEVEL
        if isinstance(value, tuple | list):
            return max(map(self.needed, value), default=FIRST_LEVEL)
        if not isinstance(value, msgspec.Struct) or not self._has_changed(type(value)):
            return FIRST_LEVEL
        kind = type(value).__name__
        level = self.level_of(kind)
        for field in msgspec.structs.fields(value):
            held = getattr(value, field.name)
            if field.required or held != field.default:
                level = max(level, self.level_of(f"{kind}.{field.name}"), self.needed(held))
        return level

    def at(self, value: Any, level: int) -> Any:
        """Return the value to encode at `level` in place of `value`: the same value without the fields that came later.
        At the highest level the result is `value` itself, at no cost.

        Raises ValueError when the struct itself came later than `level`, or when a field of `level` lies behind one of
        a later level.
        """
        if level >= self._named_maximum:
            return value
        if isinstance(value, tuple | list):
            return [self.at(item, level) for item in value]
        if not isinstance(value, msgspec.Struct) or not self._has_changed(type(value)):
            return value
        kind = type(value)
        layout = self._layouts.get((kind, level)) or self._layout(kind, level)
        items = [getattr(value, name) for name in layout.fields]
        for place in layout.nested:
            items[place] = self.at(items[place], level)
        tag = kind.__struct_config__.tag
        return items if tag is None else [tag, *items]

    def _layout(self, kind: type[msgspec.Struct], level: int) -> _Layout:
        """Return the layout of the struct at the level, and keep it: `at` is called for all that an entry says. Raises
        as `at` does.
        """
        name = kind.__name__
        if self.level_of(name) > level:
            raise ValueError(f"{name} belongs to feature level {self.level_of(name)}, not {level}")
        fields = tuple(each for each in kind.__struct_fields__ if self.level_of(f"{name}.{each}") <= level)
        if fields != kind.__struct_fields__[: len(fields)]:
            raise ValueError(f"{name} has a field of level {level} behind one of a later level")
        hints = typing.get_type_hints(kind)
        nested = [place for place, each in enumerate(fields) if any(map(self._has_changed, _structs_in(hints[each])))]
        self._layouts[kind, level] = layout = _Layout(fields, tuple(nested))
        return layout

    def _has_changed(self, kind: type) -> bool:
        """Return whether a later level names the struct, or any struct that it may hold."""
        known = self._changed.get(kind)
        if known is None:
            self._changed[kind] = False  # a preliminary answer: it ends the recursion for structs that hold themselves
            held = {part for hint in typing.get_type_hints(kind).values() for part in _structs_in(hint)}
            named = {
                kind.__name__,
                *(f"{kind.__name__}.{name}" for name in kind.__struct_fields__),  # type: ignore[attr-defined]
            }
            known = not named.isdisjoint(self._level_of) or any([self._has_changed(part) for part in held])
            self._changed[kind] = known
        return known

    # --- what may be read --------------------------------------------------------------------------------------

    def require_known(self, found: LevelOf, what: str) -> None:
        """Raise UnknownFeatureLevel when `what`, such as `this log`, has a higher level than this build knows."""
        if found.level > self.maximum:
            version = f"KeelMQ {found.version} and later" if found.version else "a later KeelMQ"
            raise UnknownFeatureLevel(
                f"{what} needs feature level {found.level}, which {version} know; this is KeelMQ {self.version}, "
                f"which knows {self.describe()}. Nothing was changed. Start that version, or a later one, here; "
                "docs/upgrading.md"
            )

    def require_supported(self, found: LevelOf, what: str) -> None:
        """Raise UnknownFeatureLevel when this build does not know the level of `what`, or when it no longer works at
        that level.
        """
        self.require_known(found, what)
        if found.level < self.minimum:
            raise UnknownFeatureLevel(
                f"{what} is at feature level {found.level}; this is KeelMQ {self.version}, which works at "
                f"{self.describe()}. Nothing was changed. Start the version before this one on all nodes, raise the "
                f"level to {self.minimum} with 'keelmq cluster upgrade', and then start this one; docs/upgrading.md"
            )

    def describe(self) -> str:
        """Return the range of levels that this build works at, in words."""
        return describe(self.minimum, self.maximum)


def describe(minimum: int, maximum: int) -> str:
    """Return a range of levels in words."""
    return str(maximum) if minimum == maximum else f"{minimum} to {maximum}"


def read_level(configuration: bytes) -> LevelOf:
    """Return the level in a configuration record. The other fields are ignored, so this also reads the records of
    versions that this build cannot read. Raises ValueError when `configuration` is not a configuration record.
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
    """Yield every struct type that a type hint names, including those inside unions, tuples and annotations."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for part in typing.get_args(hint):
        yield from _structs_in(part)


FEATURES: Final = Features(LEVELS, FEATURE_LEVEL_MIN, VERSION)
