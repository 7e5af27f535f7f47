"""docs/security.md compares KeelMQ with others: each row names tests that show KeelMQ's cell, and they exist."""

from typing import Final

from tests.documents import TESTS, missing_tests, named_tests
from tests.unit.test_rocketmq_page import CELL, ROW

PAGE: Final = (TESTS.parent / "docs" / "security.md").read_text()
TABLE: Final = PAGE.split("\n## Compared with others\n")[1]
ROWS: Final = [[cell.strip() for cell in CELL.split(row)] for row in ROW.findall(TABLE)][2:]


def test_every_named_test_exists() -> None:
    assert missing_tests(named_tests(TABLE)) == {}


def test_every_row_is_filled_and_names_a_test() -> None:
    assert len(ROWS) >= 15
    assert {len(row) for row in ROWS} == {7}
    assert [row for row in ROWS if not all(row) or "not documented" in row] == []
    assert [row for row in ROWS if "::" not in row[-1]] == []
