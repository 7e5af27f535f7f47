"""Mutants of the guards of feature levels: apply that does at all levels what a later one brought, or at none.

A guard that is lost makes nodes of two versions differ, or old logs replay to another state. The tests of what a guard
changes are run at the wrong answer of the guard, and have to fail.
"""

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

import pytest

import store
from store.commands.topics import PutTopic
from store.features import FEATURES, Features
from store.state.rows_hash import SUMMED
from tests.unit.store import (
    test_command,
    test_dedupe,
    test_expiry,
    test_outcomes,
    test_redelivery,
    test_retention_bytes,
    test_rows_hash,
    test_timers,
)
from tests.unit.store.replica import Replica, header, produce

TestOfLevels = Callable[[Replica, int], None]


class Guard(NamedTuple):
    """A test of what the guard changes, which takes a level, and the commands that precede it."""

    test: TestOfLevels
    before: tuple[PutTopic, ...] = (PutTopic("orders", 2),)


def of_redelivery(test: TestOfLevels) -> TestOfLevels:
    """Return a test of messages that are given back, with the messages that it needs."""

    def with_messages(replica: Replica, level: int) -> None:
        replica.do(produce(header("orders", 0, "b0", 4)), produce(header("orders", 0, "b1", 6)))
        test(replica, level)

    return with_messages


GUARDS: Final = {
    "timers-note-only-their-own-transaction": Guard(
        partial(test_timers.test_a_timer_changes_no_later_transaction_of_its_id, decided=True)
    ),
    "cancelled-again-is-remembered-anew": Guard(
        lambda replica, level: test_dedupe.test_cancelling_again_is_answered_alike_for_another_window(
            replica, level, level
        )
    ),
    "ids-of-messages-keep-no-batch": Guard(
        test_expiry.test_ids_of_messages_that_are_ids_of_batches_too_are_swept_out,
        (PutTopic("orders", 2, test_expiry.KEPT_MS),),
    ),
    "redeliveries-note-only-their-own-message": Guard(
        of_redelivery(partial(test_redelivery.test_a_late_retry_notes_nothing_of_a_later_topic, messages=10))
    ),
    "acks-begin-at-kept-messages": Guard(
        test_outcomes.test_messages_that_were_removed_before_a_commit_are_not_acknowledged
    ),
    "Event.type.RESET": Guard(test_outcomes.test_where_a_group_is_set_is_told_from_the_second_level_on),
    "Event.type.TOPIC_DELETE": Guard(test_outcomes.test_the_removal_of_a_topic_is_told_from_the_second_level_on),
    "retention-bytes": Guard(test_retention_bytes.test_bytes_are_counted_from_the_second_level_on, ()),
    SUMMED: Guard(test_rows_hash.test_the_level_says_how_rows_are_hashed, ()),
    "_Header.principals": Guard(
        lambda _replica, _level: test_command.test_principals_are_a_fourth_part_of_the_header_and_stand_there_once()
    ),
}
"""The words that code of `store` asks for, but for structs, fields and commands, which tests/versions/ has."""


def answering(word: str, answer: bool) -> Callable[[Features, str, int], bool]:
    """Return a broken `Features.knows`, with the same answer about a word at all levels."""
    knows = Features.knows

    def knows_wrongly(features: Features, name: str, level: int) -> bool:
        return answer if name == word else knows(features, name, level)

    return knows_wrongly


@pytest.mark.parametrize("mistake", ["at all levels", "at no level"])
@pytest.mark.parametrize("word", GUARDS)
def test_a_guard_that_is_lost_is_found(tmp_path: Path, word: str, mistake: str) -> None:
    assert FEATURES.level_of(word) == 2
    level, answer = (1, True) if mistake == "at all levels" else (2, False)
    for broken in (False, True):
        replica = Replica(tmp_path / str(broken), log_range_bytes=1)
        replica.do(*GUARDS[word].before)
        if not broken:
            GUARDS[word].test(replica, level)
        else:
            with mock.patch.object(Features, "knows", answering(word, answer)), pytest.raises(AssertionError):
                GUARDS[word].test(replica, level)
        replica.close()


def test_no_guard_is_left_out() -> None:
    asked = {word for file in Path(store.__file__).parent.rglob("*.py") for word in words_asked(file)}
    assert asked == GUARDS.keys(), "each needs a test that takes a level"


def words_asked(file: Path) -> set[str]:
    """Return the words that the module asks `FEATURES.knows` for."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    asked = [call.args[0] for call in calls if ast.unparse(call.func) == "FEATURES.knows"]
    return {each.value if isinstance(each, ast.Constant) else {"SUMMED": SUMMED}[ast.unparse(each)] for each in asked}  # type: ignore[misc]
