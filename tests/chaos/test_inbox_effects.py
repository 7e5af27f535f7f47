"""Tests the traces of a recorded group's members: their records, and the effects in their database."""

from pathlib import Path

import pytest

from tests.chaos.checkers.inbox import judge_effects
from tests.chaos.group_member import effects, effects_by_number, open_database
from tests.chaos.group_records import Recorder, SessionOver, read_records
from tests.chaos.message import number_of
from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.returns import is_doomed


class TestInbox:
    DELIVERED = tuple(number_of(1, sequence) for sequence in range(10))

    def judge(self, violations: Violations, changes: dict[int, int]) -> dict[Kind, int]:
        innocent = {number: 1 for number in self.DELIVERED if not is_doomed(number)}
        judge_effects(self.DELIVERED, innocent | changes, violations)
        return dict(violations.counts)

    def test_once_each(self, violations: Violations) -> None:
        assert self.judge(violations, {}) == {}

    @pytest.mark.parametrize("times", [0, 2])
    def test_missing_or_twice(self, violations: Violations, times: int) -> None:
        number = next(each for each in self.DELIVERED if not is_doomed(each))
        assert self.judge(violations, {number: times}) == {Kind.INBOX: 1}

    def test_of_what_cannot_be_processed_or_was_never_sent(self, violations: Violations) -> None:
        doomed = next(each for each in self.DELIVERED if is_doomed(each))
        assert self.judge(violations, {doomed: 1, number_of(2, 0): 1}) == {Kind.INBOX: 2}

    def test_effects_are_counted_by_message(self, tmp_path: Path) -> None:
        path = str(tmp_path / "effects.sqlite")
        engine = open_database(path)
        with engine.begin() as connection:
            for number in (3, 3, 5):
                connection.execute(effects.insert().values(number=number, message_id="m"))
        engine.dispose()
        assert effects_by_number(path) == {3: 2, 5: 1}


def test_records_of_all_members_in_the_order_of_time(tmp_path: Path) -> None:
    records = [SessionOver(member=name, at_s=at_s) for name, at_s in (("a", 1.0), ("b", 2.0), ("a", 3.0))]
    for record in records:
        recorder = Recorder(tmp_path / f"{record.member}.records")
        recorder.write(record)
        recorder.close()
    with (tmp_path / "a.records").open("ab") as cut_short:
        cut_short.write(b'{"kind":"sess')
    assert read_records(tmp_path) == records
