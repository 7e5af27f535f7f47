"""The log level of a running node: changes over the API, what ends them, and what no change reaches."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.process.line_pace import AUDIT_LOGGER
from cluster.process.logging_setup import log_levels, set_log_level
from tests.unit.cluster.conftest import Node
from tests.unit.cluster.test_join_tokens import closed_node

PATH = "/v1/cluster/log-level"


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Leave the loggers of the process as they were."""
    root, audit = logging.getLogger(), logging.getLogger(AUDIT_LOGGER)
    before = root.level, audit.level
    yield
    set_log_level("warning")
    root.setLevel(before[0])
    audit.setLevel(before[1])


async def test_the_level_of_the_node_and_of_a_logger_is_changed_and_shown(node: Node) -> None:
    set_log_level("info")
    changed = await node.call("PUT", PATH, {"level": "debug", "logger": "raft"})
    assert changed.body == (await node.call("GET", PATH)).body
    assert changed.body["loggers"] == {"raft": "debug"}
    assert (changed.body["level"], changed.body["configured"]) == ("info", "info")
    assert logging.getLogger("raft.node").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("cluster.main").isEnabledFor(logging.DEBUG)
    assert (await node.call("PUT", PATH, {"level": "error"})).body["level"] == "error"
    assert logging.getLogger("raft.node").isEnabledFor(logging.DEBUG), "a logger keeps a level of its own"
    assert (await node.call("PUT", PATH, {"level": None, "logger": "raft"})).body["loggers"] == {}
    assert not logging.getLogger("raft.node").isEnabledFor(logging.WARNING)


async def test_a_change_is_logged_whatever_the_level_is_now(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    await node.call("PUT", PATH, {"level": "warning"})
    assert "the log level is warning until the next start or SIGHUP" in caplog.text


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == AUDIT_LOGGER]


async def test_who_changes_the_level_is_audited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with closed_node(tmp_path) as node:
        set_log_level("error")
        assert (await node.call("PUT", PATH, {"level": "warning"})).status == 200
        assert (await node.call("PUT", PATH, {"level": "loud"})).status == 400
        assert (await node.call("GET", PATH)).status == 200
    assert audited(caplog) == [
        "PUT /v1/cluster/log-level by admin at 127.0.0.1: 200",
        "PUT /v1/cluster/log-level by admin at 127.0.0.1: invalid_request",
    ]


async def test_without_authentication_there_is_nobody_to_audit(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    assert (await node.call("PUT", PATH, {"level": "warning"})).status == 200
    assert audited(caplog) == []
    assert "the log level is warning" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"level": None},
        {"level": "critical"},
        {"level": "DEBUG"},
        {"level": "debug", "logger": ""},
        {"level": "debug", "logger": "no.such.logger"},
        {"level": "error", "logger": AUDIT_LOGGER},
        {"level": "error", "logger": f"{AUDIT_LOGGER}.refused"},
        {"level": "debug", "more": 1},
    ],
)
async def test_a_refused_change_changes_nothing(node: Node, body: dict[str, object]) -> None:
    before = (await node.call("GET", PATH)).body
    answer = await node.call("PUT", PATH, body)
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert (await node.call("GET", PATH)).body == before


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_audit_log_is_written_at_every_level(level: str) -> None:
    set_log_level(level)
    assert logging.getLogger(AUDIT_LOGGER).isEnabledFor(logging.INFO)
    assert logging.getLogger(f"{AUDIT_LOGGER}.refused").isEnabledFor(logging.WARNING)


def test_taking_over_the_configured_level_ends_those_of_loggers() -> None:
    logging.getLogger("raft").setLevel(logging.DEBUG)
    set_log_level("warning")
    assert log_levels() == {}
    assert not logging.getLogger("raft.node").isEnabledFor(logging.INFO)
