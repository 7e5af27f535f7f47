"""Tests the table of levels: the level a command needs, its form below the highest level, and the advice given."""

from typing import Any

import msgspec
import pytest

from store.features import FeatureLevel, Features, LevelOf, UnknownFeatureLevel, read_level


class Part(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    size: int
    color: str = ""


class Order(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag=1):
    parts: tuple[Part, ...]
    note: str = ""
    rush: bool = False


class Cancel(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag=2):
    order: int


class Other(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag=3):
    order: int


LEVELS = (
    FeatureLevel(1, "1.0"),
    FeatureLevel(2, "1.1", frozenset({"Order.rush", "Part.color"})),
    FeatureLevel(3, "1.2", frozenset({"Cancel", "slower-retries"})),
)
FEATURES = Features(LEVELS, 1, "1.2")


@pytest.mark.parametrize(
    ("command", "level"),
    [
        (Order((Part(1),)), 1),
        (Order((Part(1),), "soon"), 1),
        (Order((), rush=True), 2),
        (Order((Part(1), Part(2, "red"))), 2),
        (Cancel(7), 3),
        (Other(7), 1),
    ],
)
def test_a_command_needs_the_level_of_what_it_uses(command: Any, level: int) -> None:
    assert FEATURES.needed(command) == level


def test_below_its_level_a_field_is_not_written() -> None:
    order = Order((Part(1), Part(2)), "soon")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(FEATURES.at(order, 1))) == [1, [[1], [2]], "soon"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(FEATURES.at([order], 2))) == [
        [1, [[1, ""], [2, ""]], "soon", False]
    ]
    assert FEATURES.at(order, 3) is order, "at the highest level nothing is made anew"
    assert FEATURES.at(Other(7), 1) == Other(7)


def test_a_command_above_the_level_is_never_written() -> None:
    with pytest.raises(ValueError, match="Cancel belongs to feature level 3, not 2"):
        FEATURES.at([Cancel(7)], 2)


def test_what_is_no_field_is_asked_for_by_its_name() -> None:
    assert [FEATURES.knows("slower-retries", level) for level in (1, 2, 3)] == [False, False, True]
    assert FEATURES.version_of(2) == "1.1"


def test_who_is_too_old_is_told_which_version_to_start() -> None:
    old = Features(LEVELS[:1], 1, "1.0")
    with pytest.raises(UnknownFeatureLevel) as caught:
        old.require_known(LevelOf(2, "1.1"), "this log")
    assert str(caught.value).startswith(
        "this log needs feature level 2, which KeelMQ 1.1 and later know; this is KeelMQ 1.0, which knows 1. "
        "Nothing was changed. Start that version"
    )
    old.require_known(LevelOf(1, ""), "this log")


def test_who_is_too_new_is_told_to_go_step_by_step() -> None:
    new = Features(LEVELS, 2, "1.2")
    with pytest.raises(UnknownFeatureLevel, match=r"is at feature level 1; .* which works at 2 to 3"):
        new.require_supported(LevelOf(1, ""), "this log")
    new.require_known(LevelOf(1, ""), "this log")


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ([[], "origin"], LevelOf(1, "")),
        ([[], "origin", 1, ""], LevelOf(1, "")),
        ([[], "origin", 7, "3.0", {"what": "nobody knows yet"}], LevelOf(7, "3.0")),
        ([b"another form", None, 7, "3.0"], LevelOf(7, "3.0")),
    ],
)
def test_the_level_is_found_in_configurations_of_every_version(fields: list[Any], found: LevelOf) -> None:
    assert read_level(msgspec.msgpack.encode(fields)) == found


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({}),
        *map(msgspec.msgpack.encode, ([1, 2, 0], [1, 2, "3", "4"], [1, 2, True], [1, 2, 3, 4])),
    ],
)
def test_what_is_no_configuration_has_no_level(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message differs with the damage
        read_level(payload)
