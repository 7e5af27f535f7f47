"""docs/security.md compares KeelMQ with others: each row names tests that show KeelMQ's cell, and they exist."""

import re
from typing import Final

import pytest

from tests.unit.test_rocketmq_page import CELL, ROW, TESTS, functions

PAGE: Final = (TESTS.parent / "docs" / "security.md").read_text()
TABLE: Final = PAGE.split("\n## Compared with others\n")[1]
ROWS: Final = [[cell.strip() for cell in CELL.split(row)] for row in ROW.findall(TABLE)][2:]
NAMED: Final = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_named_test_exists(file: str) -> None:
    named = {name for other, name in NAMED if other == file}
    assert named - functions(TESTS / file) == set()


def test_every_row_is_filled_and_names_a_test() -> None:
    assert len(ROWS) >= 15
    assert {len(row) for row in ROWS} == {7}
    assert [row for row in ROWS if not all(row) or "not documented" in row] == []
    assert [row for row in ROWS if "::" not in row[-1]] == []
