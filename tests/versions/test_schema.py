"""Tests that everything nodes send, log, store or hash belongs to a feature level, and that golden logs replay
unchanged.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import keelmq.version
import store.commands.topics
import store.groups.pops
import store.messages.timers
import store.messages.topics
import store.state.expiry
from raft.messages import Vitals
from store.commands.entry import Command
from store.commands.topics import PutTopic
from store.features import FEATURES, LEVELS, FeatureLevel
from store.version import VERSION
from tests.versions import golden_log, refusals, releases, schema

ROOT = Path(__file__).parents[2]
OF_THE_HANDSHAKE = {"Hello", "Challenge", "Proof", "Welcome", "Build"}
"""Structs by which nodes of any two versions exchange their versions: fields that a later one adds there are ignored.
"""
every_level = pytest.mark.parametrize("level", [each.number for each in LEVELS])


@pytest.fixture
def _own_table() -> Iterator[None]:
    """Restore this build's table after the test."""
    yield
    FEATURES.set_levels(LEVELS, FEATURES.minimum, VERSION)


@every_level
def test_what_belongs_to_a_level_is_as_it_was(level: int) -> None:
    advice = schema.ADVICE.format(level=level, frozen=releases.frozen_level())
    assert schema.description(level) == schema.golden_file(level).read_text(), advice


@every_level
def test_an_old_log_replays_to_what_it_did(level: int) -> None:
    assert golden_log.first_difference(level) == ""


@every_level
def test_the_golden_log_holds_every_command_carried_out(level: int) -> None:
    done = {outcome for each in golden_log.read_hashes(level) for outcome in each.outcomes if " " not in outcome}
    of_level = {kind.__name__ for kind in get_args(Command) if FEATURES.level_of(kind.__name__) <= level}
    assert done >= {*of_level, "no-op", "configuration"}


def test_refusals_of_apply_keep_their_texts() -> None:
    """The golden logs make only some of them, and a text is part of the state hash."""
    golden, present = refusals.golden(), refusals.texts()
    assert sorted((golden - present).elements()) == [], refusals.ADVICE
    assert sorted((present - golden).elements()) == [], f"{refusals.ADVICE} Add new ones: {refusals.WRITE}"


def test_levels_follow_each_other_and_name_what_exists() -> None:
    assert [each.number for each in LEVELS] == list(range(1, len(LEVELS) + 1))
    names = [kind.__name__ for kind in schema.structs()]
    fields = [f"{kind.__name__}.{name}" for kind in schema.structs() for name in kind.__struct_fields__]
    named = {name for each in LEVELS for name in each.adds if "." in name or name[:1].isupper()}
    rules = {f"{place}.{name}" for place, found in schema.REPLAY_RULES.items() for name in found}
    constants = {f"{module.__name__}.{name}" for module in schema.modules() for name in vars(module)}
    words = {f"{kind.__name__}.{name}.{word}" for kind in schema.structs() for name, word in schema.words(kind)}
    assert named <= {*names, *fields, *words, *rules, *constants}
    ambiguous = {name for name in names if names.count(name) > 1}
    assert not {name.partition(".")[0] for name in named} & ambiguous


def test_nothing_takes_more_elements_than_it_knows() -> None:
    """msgspec would drop superfluous elements otherwise, from arrays too."""
    loose = {kind.__name__ for kind in schema.structs() if not kind.__struct_config__.forbid_unknown_fields}
    assert loose == OF_THE_HANDSHAKE
    for kind in get_args(Command):
        required = [None] * len(kind.__struct_fields__)
        data = msgspec.msgpack.encode([kind.__struct_config__.tag, *required, "one too many"])
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(data, type=Command)
    with pytest.raises(msgspec.ValidationError, match="at most length"):
        msgspec.msgpack.decode(msgspec.msgpack.encode([2, "orders", "more"]), type=Command)


def test_a_field_without_a_level_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = msgspec.defstruct(
        "PutTopic", [("owner", str, "")], bases=(PutTopic,), module="store.commands.topics", frozen=True, tag=1
    )
    monkeypatch.setattr(store.commands.topics, "PutTopic", wider)
    assert schema.description(1) != schema.golden_file(1).read_text()


@pytest.mark.usefixtures("_own_table")
def test_a_field_with_a_level_leaves_those_before_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = msgspec.defstruct(
        "PutTopic", [("owner", str, "")], bases=(PutTopic,), module="store.commands.topics", frozen=True, tag=1
    )
    monkeypatch.setattr(store.commands.topics, "PutTopic", wider)
    FEATURES.set_levels([*LEVELS, FeatureLevel(len(LEVELS) + 1, "9.0", frozenset({"PutTopic.owner"}))], 1, "9.0")
    assert schema.description(1) == schema.golden_file(1).read_text()
    assert schema.description(len(LEVELS) + 1) != schema.description(1)


def test_a_message_without_a_level_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    named = msgspec.defstruct("Gossip", [("term", int)], module=Vitals.__module__, array_like=True, tag=99)
    monkeypatch.setattr("raft.messages.Gossip", named, raising=False)
    assert schema.description(1) != schema.golden_file(1).read_text()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (store.groups.pops, "POP_MESSAGES_MAX", 2),
        (store.messages.timers, "DELAY_MAX_MS", 1_000),
        (store.state.expiry, "TRANSACTION_RETENTION_MS", 1_000),
        (store.messages.topics, "DEFAULT_QUEUES", 5),
    ],
)
def test_a_constant_that_apply_goes_by_cannot_change_unnoticed(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: int
) -> None:
    """A change is found where the constant is used; where it is listed, the description shows it."""
    monkeypatch.setattr(module, name, value)
    assert "of the golden log of level 1 was" in golden_log.first_difference(1)
    monkeypatch.setattr("store.limits." + name, value)
    assert schema.description(1) != schema.golden_file(1).read_text()


def test_a_command_carried_out_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.state.machine.IRREVERSIBLE", ())
    assert "clock_in_doubt" in golden_log.first_difference(1)


def test_every_program_calls_itself_by_the_version_of_its_tree() -> None:
    assert keelmq.version.VERSION == VERSION
    spark = tomllib.loads((ROOT / "spark" / "pyproject.toml").read_text())
    assert spark["project"]["version"] == VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert tuple(map(int, LEVELS[-1].version.split("."))) <= tuple(map(int, VERSION.split(".")))


def test_a_release_is_of_a_level_that_this_tree_knows() -> None:
    for each in releases.releases():
        assert 1 <= each.feature_level <= FEATURES.maximum
        assert re.fullmatch(r"[0-9a-f]{40}", each.commit), "the full id of the commit"
