"""Describes everything that nodes send, log, store or hash, as lines of text per feature level.

    python -m tests.versions.schema            # compare with tests/versions/golden/schema-<level>.txt
    python -m tests.versions.schema --write    # write those of levels that no release has

A line is a struct with its tag, a field with its place, type and default, the layout of a record or a key, or a
constant that apply uses. The description of a level has the items that the table of store/features.py leaves there. So
whoever adds an item without naming it in the table changes a level that was released.
"""

import enum
import functools
import importlib
import operator
import pkgutil
import struct
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

import raft
import store
import store.limits
from store.features import FEATURES
from tests.versions.releases import frozen_level

GOLDEN: Final = Path(__file__).with_name("golden")
FORMATS: Final = ("MAGIC", "VERSION", "FORMAT", "PROTOCOL", "FILE_BYTES", "KINDS", "FILE_NAME", "DECISION_FILE")
REPLAY_RULES: Final = {
    "store.commands.entry": ("IRREVERSIBLE",),
    "store.messages.dedupe": ("EXPIRED_RECORDS_PER_ENTRY",),
    "store.state.expiry": ("OUTCOMES_REMOVED_MIN",),
    "store.groups.given_back": ("REPLAYED",),
    "store.groups.history": ("PASSES_SHOWN_MAX",),
    "store.limits": tuple(name for name in vars(store.limits) if name.isupper()),
    "store.messages.log_references": ("LOG_RANGE_BYTES",),
    "store.messages.message_index": ("KEY_HASH_BYTES",),
    "store.transactions.op_messages": ("DONE_TAG",),
    "store.groups.pops": ("TIMED_OUT",),
    "store.state.machine": ("HASH_BYTES",),
    "store.messages.topics": (
        "SYSTEM_TOPICS",
        "RETRY_PREFIX",
        "DLQ_PREFIX",
        "FIRST_TOPIC_ID",
        "_PLAIN",
        "_DELAYED",
        "_HALF",
    ),
}
"""Constants that decide the result of replaying an old log."""
NOT_SENT: Final = frozenset({"store.version", "store.features", "raft.library.VERSION"})
OWN_NUMBER: Final = frozenset({"store.snapshots.backup_frames"})
"""Modules of files that no running node reads, and that have a format number of their own."""

ADVICE: Final = (
    "what nodes send, log, store or hash has changed at feature level {level}. A released level never changes: "
    "name what is new in store/features.py at a level above {frozen} (docs/upgrading.md), then run "
    "'python -m tests.versions.schema --write'"
)


def description(level: int) -> str:
    """Return all lines of a level."""
    return "\n".join(_lines(level)) + "\n"


def golden_file(level: int) -> Path:
    return GOLDEN / f"schema-{level}.txt"


def modules() -> list[ModuleType]:
    """Return the modules of both packages that can define such items."""
    found = []
    for package in (store, raft):
        names = sorted(each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
        found += [importlib.import_module(name) for name in names if name not in NOT_SENT | OWN_NUMBER]
    return found


def structs() -> list[type[msgspec.Struct]]:
    """Return every struct that is written as an array: commands, results, records, messages and rows."""
    return [
        value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
        if value.__struct_config__.array_like and value.__struct_fields__
    ]


def words(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return the fields of a struct that are one of several words, each with every word."""
    hints = typing.get_type_hints(kind)
    return [
        (name, word)
        for name in kind.__struct_fields__
        if typing.get_origin(hints[name]) is typing.Literal
        for word in typing.get_args(hints[name])
    ]


def _lines(level: int) -> Iterator[str]:
    for kind in sorted(structs(), key=lambda kind: (kind.__module__, kind.__name__)):
        if FEATURES.level_of(kind.__name__) <= level:
            yield from _of_struct(kind, level)
    for module in modules():
        for name, value in vars(module).items():
            place = f"{module.__name__}.{name}"
            if place not in NOT_SENT and FEATURES.level_of(place) <= level and _is_format(module, name, value):
                yield f"format {place} = {_value(value)}"
    for place, names in REPLAY_RULES.items():
        for name in names:
            if FEATURES.level_of(f"{place}.{name}") <= level:
                yield f"rule {place}.{name} = {_value(getattr(sys.modules[place], name))}"


def _of_struct(kind: type[msgspec.Struct], level: int) -> Iterator[str]:
    tag = kind.__struct_config__.tag
    yield f"struct {kind.__module__}.{kind.__name__}" + (f" tag {tag}" if tag is not None else "")
    hints = typing.get_type_hints(kind)  # without Meta: it limits the accepted values, not their form
    for field in msgspec.structs.fields(kind):
        if FEATURES.level_of(f"{kind.__name__}.{field.name}") <= level:
            default = "" if field.required else f" = {_default(field, level)}"
            hint = _with_words(_at_level(hints[field.name], level), f"{kind.__name__}.{field.name}", level)
            yield f"    {field.name}: {_type(hint)}{default}"


def _default(field: msgspec.structs.FieldInfo, level: int) -> str:
    if isinstance(field.default, msgspec.Struct):
        kind = type(field.default).__name__
        known = (name for name in field.default.__struct_fields__ if FEATURES.level_of(f"{kind}.{name}") <= level)
        return f"{kind}({', '.join(f'{name}={getattr(field.default, name)!r}' for name in known)})"
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    return f"{getattr(field.default_factory, '__name__', field.default_factory)}()"


def _at_level(hint: Any, level: int) -> Any:
    """Return the hint without the structs in its unions that came later than `level`."""
    parts = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, (part for part in parts if _level_of(part) <= level))
    known = tuple(_at_level(part, level) for part in parts)
    return hint if known == parts else typing.get_origin(hint)[known]


def _with_words(hint: Any, field: str, level: int) -> Any:
    """Return the hint without the words of a Literal that came later than `level`."""
    if typing.get_origin(hint) is not typing.Literal:
        return hint
    return typing.Literal[
        tuple(word for word in typing.get_args(hint) if FEATURES.level_of(f"{field}.{word}") <= level)
    ]


def _level_of(kind: Any) -> int:
    return FEATURES.level_of(kind.__name__) if isinstance(kind, type) else 0


def _type(hint: Any) -> str:
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("NoneType", "None")


def _is_format(module: ModuleType, name: str, value: object) -> bool:
    """Return whether the value is a layout that this module defines, and does not import."""
    lines = Path(module.__file__ or "").read_text().splitlines()
    if not any(line.startswith((f"{name} ", f"{name}:")) for line in lines):
        return False
    if isinstance(value, struct.Struct) or (module.__name__ == "store.index.keys" and isinstance(value, bytes)):
        return True
    return name.lstrip("_") in FORMATS or name in ("KIND_ENTRY", "KIND_NOOP", "KIND_CONFIG")


def _value(value: object) -> str:
    if isinstance(value, struct.Struct):
        return f"{value.format!r}, {value.size} bytes"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    return str(int(value)) if isinstance(value, enum.IntEnum) else repr(value)


def main() -> int:
    """Compare or write the golden files; return 1 when one differs from this tree."""
    differs = 0
    for level in range(1, FEATURES.maximum + 1):
        file, text = golden_file(level), description(level)
        if file.exists() and file.read_text() == text:
            continue
        if "--write" in sys.argv[1:] and level > frozen_level():
            file.write_text(text)
            print(f"wrote {file}")
        else:
            print(ADVICE.format(level=level, frozen=frozen_level()), file=sys.stderr)
            differs = 1
    return differs


if __name__ == "__main__":
    sys.exit(main())
