"""docs/rocketmq.md names tests: each of them exists, and every row names one or says what is missing."""

import re
from typing import Final

from tests.documents import TESTS, missing_tests, named_tests

PAGE: Final = (TESTS.parent / "docs" / "rocketmq.md").read_text()
ROW: Final = re.compile(r"^\|(.*)\|$", re.MULTILINE)
CELL: Final = re.compile(r"(?<!\\)\|")


def test_every_named_test_exists() -> None:
    assert missing_tests(named_tests(PAGE)) == {}


def test_every_row_names_a_test_or_says_that_it_is_missing() -> None:
    rows = [[cell.strip() for cell in CELL.split(row)] for row in ROW.findall(PAGE)]
    rows = [row for row in rows if (row[-1] != "test" and not set(row[-1]) <= {"-"}) or row[-1] == ""]
    assert len(rows) > 50
    silent = [row for row in rows if "::" not in row[-1] and not any("not yet" in cell for cell in row)]
    assert silent == []


def test_every_complaint_has_a_row() -> None:
    table = PAGE.split("## What users of RocketMQ complain of")[1]
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == list(range(1, 16))
