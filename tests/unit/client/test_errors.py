"""The error table holds every code of the contract, with the retry rule the contract gives it."""

import re
from pathlib import Path

import pytest

from keelmq import errors
from keelmq.errors import ERRORS_BY_CODE, KeelMQError, TransactionConflict, UnknownOutcome, error_from_problem

CONTRACT = Path(__file__).parents[3] / "docs" / "http-api.md"


def contract_rows() -> list[tuple[str, bool]]:
    """Return (code, retry) of each row of the table in docs/http-api.md."""
    section = CONTRACT.read_text().split("\n## Errors")[1]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) >= 4 and cells[0].startswith("`"):
            rows += [(code, cells[2].startswith("yes")) for code in re.findall(r"`([a-z_]+)`", cells[0])]
    return rows


@pytest.mark.parametrize(("code", "retry"), contract_rows())
def test_every_code_of_the_contract_is_known(code: str, retry: bool) -> None:
    assert code in ERRORS_BY_CODE
    assert ERRORS_BY_CODE[code].retryable is retry


def test_the_contract_was_read() -> None:
    assert len(contract_rows()) > 30


def test_the_hierarchy_in_the_docstring_is_complete() -> None:
    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, KeelMQError):
            assert re.search(rf"\b{name}\b", errors.__doc__), name


def test_extra_members_of_a_problem() -> None:
    error = error_from_problem(
        409,
        {"code": "transaction_conflict", "detail": "d", "title": "t", "state": "rolled_back", "decided_at_ms": 7},
    )
    assert isinstance(error, TransactionConflict)
    assert (error.state, error.decided_at_ms, error.extra) == (
        "rolled_back",
        7,
        {"state": "rolled_back", "decided_at_ms": 7},
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, "InvalidRequest"), (404, "NotFound"), (409, "Conflict"), (429, "Overloaded"), (502, "UnknownOutcome")],
)
def test_answers_without_a_known_code_fall_back_on_the_status(status: int, expected: str) -> None:
    error = error_from_problem(status, {})
    assert type(error).__name__ == expected
    assert error.code == f"http_{status}"


def test_unknown_outcomes_say_so() -> None:
    assert UnknownOutcome.outcome_unknown
    assert all(not cls.outcome_unknown for cls in ERRORS_BY_CODE.values() if not issubclass(cls, UnknownOutcome))
