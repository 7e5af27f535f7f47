"""The error tables in the code and in the documentation are the same."""

import re
from pathlib import Path

import msgspec
import pytest

from cluster import limits
from cluster.problems import KINDS, NEXT_STEPS, PROBLEM_JSON, Problem, problem_of
from raft.errors import NodeStopped, NoLeader, NotLeader, Overloaded, ProposalTooLarge, UnknownOutcome
from store import errors as store_errors
from store.errors import Refused

DOCUMENT = Path(__file__).parents[3] / "docs" / "http-api.md"


def documented() -> dict[str, tuple[int, bool]]:
    """Return status and whether a retry may help, by code, from the table of docs/http-api.md."""
    table = DOCUMENT.read_text().split("## Errors")[1]
    found: dict[str, tuple[int, bool]] = {}
    for line in table.splitlines():
        if not line.startswith("| `"):
            continue
        codes, statuses, retry = (cell.strip() for cell in line.strip("|").split("|")[:3])
        names = re.findall(r"`(\w+)`", codes)
        numbers = [int(number) for number in statuses.split(",")]
        for position, name in enumerate(names):
            found[name] = (numbers[min(position, len(numbers) - 1)], retry.startswith("yes"))
    return found


def test_the_table_is_the_documented_one() -> None:
    assert {code: (kind.status, kind.retry) for code, kind in KINDS.items()} == documented()


def test_every_refusal_of_the_store_has_a_row() -> None:
    codes = {value for name, value in vars(store_errors).items() if name.isupper() and isinstance(value, str)}
    assert codes
    assert codes <= KINDS.keys()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("topic_not_found", "no"), "topic_not_found"),
        (Overloaded("full"), "overloaded"),
        (ProposalTooLarge("fat"), "request_too_large"),
        (UnknownOutcome("lost"), "unknown_outcome"),
        (NoLeader("none"), "no_leader"),
        (NodeStopped("bye"), "no_leader"),
    ],
)
def test_domain_errors_become_problems(error: Exception, code: str) -> None:
    problem = problem_of(error)
    assert problem is not None
    assert problem.code == code


def test_a_refusal_of_apply_gets_its_next_step_in_the_answer() -> None:
    refused = Refused("transaction_not_found", "transaction t-1 does not exist", {"transaction_id": "t-1"})
    problem = problem_of(refused)
    assert problem is not None
    assert (
        problem.detail == "transaction t-1 does not exist; `keelmq transaction list` lists the transactions that exist"
    )
    assert problem.extra == {"transaction_id": "t-1"}
    assert refused.detail == "transaction t-1 does not exist", "it is part of the state hash"


def test_next_steps_are_those_of_refusals() -> None:
    refusals = {value for name, value in vars(store_errors).items() if name.isupper() and isinstance(value, str)}
    assert NEXT_STEPS.keys() <= refusals & KINDS.keys()


def test_redirects_and_bugs_are_no_problems() -> None:
    assert problem_of(NotLeader(2)) is None
    assert problem_of(ZeroDivisionError()) is None


def test_a_problem_document_says_what_the_contract_says() -> None:
    response = Problem("overloaded", "wait", {"in_flight_bytes": 7}).response()
    assert (response.status, response.content_type) == (429, PROBLEM_JSON)
    assert response.headers["Retry-After"] == "1"
    assert isinstance(response.body, bytes)
    assert msgspec.json.decode(response.body) == {
        "type": "about:blank",
        "title": "Too many bytes are in flight",
        "status": 429,
        "code": "overloaded",
        "detail": "wait",
        "in_flight_bytes": 7,
    }
    assert "Retry-After" not in Problem("invalid_request", "no").response().headers


def test_extra_members_cannot_hide_the_code() -> None:
    assert Problem("overloaded", "wait", {"code": "fine", "status": 200}).document()["code"] == "overloaded"


def test_the_limits_are_the_documented_ones() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    for phrase in (
        f"{limits.BODY_BYTES_MAX:,} bytes",
        f"block > {limits.BLOCK_BYTES_MAX >> 20} MiB",
        f"{limits.BLOCK_MESSAGES_MAX:,} messages",
        f"<= {limits.TAG_BYTES_MAX} bytes",
        f"<= {limits.KEYS_MAX}, each <= {limits.KEY_BYTES_MAX} bytes",
        f"<= {limits.PROPERTIES_BYTES_MAX:,} bytes",
        f"topic > {limits.TOPIC_LENGTH_MAX}, group > {limits.GROUP_LENGTH_MAX} characters",
        f"wait_ms=0..{limits.WAIT_MS_MAX}",
        f"max=1..{limits.CHECKS_MAX}",
        f"at most {limits.BATCHES_MAX:,} batches, {limits.REQUEST_MESSAGES_MAX:,} messages",
        f"each transaction | at most {limits.REQUEST_KEYS_MAX:,} keys",
        f"at most {limits.TRANSACTIONS_MAX} transactions",
        f"at most {limits.MESSAGES_OF_ID_MAX} messages (`MESSAGES_OF_ID_MAX`)",
        f"sought in bodies up to {limits.DUPLICATES_SOUGHT_BYTES_MAX >> 10} KiB",
        f"at most {limits.QUEUES_MAX:,} queues",
        f"`max_messages` 1 to {limits.PULL_MESSAGES_MAX:,} ({limits.PULL_MESSAGES_DEFAULT})",
        f"`max_bytes` up to {limits.PULL_BYTES_MAX >> 20} MiB ({limits.PULL_BYTES_DEFAULT >> 20} MiB)",
        f"`session_timeout_ms` {limits.SESSION_TIMEOUT_MS_MIN:,} to {limits.SESSION_TIMEOUT_MS_MAX:,}",
        f"`limit` 1 to {limits.LIST_MAX:,}",
        f"`limit` 1 to {limits.CLIENTS_MAX}, which is also the default",
        f"| `limit` | 1 to {limits.AUDIT_RECORDS_MAX} (100) |",
        f"at most {limits.OFFSETS_MAX:,} offsets",
        f"at most {limits.GROUP_TOPICS_MAX} topics",
        f"of events at most {limits.LOG_TOPICS_MAX} names",
        f"a node knows the {limits.LOG_READERS_MAX} readers that it heard last",
        f"at most {limits.GROUP_QUEUES_MAX:,} queues together",
        f"at most {limits.CLIENT_ID_LENGTH_MAX} characters",
    ):
        assert phrase in text, f"docs/http-api.md does not say: {phrase}"
