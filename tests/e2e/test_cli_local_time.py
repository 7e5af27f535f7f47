"""`keelmq --local-time` as a process: tables of a real cluster in the zone of the machine."""

import os
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import pytest

from tests.e2e.fixtures import KEELMQ, Shell, shell_topic
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

INDIA: Final = timezone(timedelta(hours=5, minutes=30))


topic = shell_topic()


def shown(shell: Shell, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, **shell.environment, "TZ": "IST-5:30", **variables}
    command = [*KEELMQ, *arguments]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S
    ).stdout


def test_tables_and_sentences_have_the_time_that_was_asked_for(shell: Shell, topic: str) -> None:
    shell("send", topic, "hello", "--queue", "0")
    found = shell.json("topic", "show", topic)
    created_ms, stored_ms = found["created_at_ms"], found["queue_offsets"][0]["first_stored_at_ms"]

    def text(at_ms: int, zone: timezone) -> str:
        return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    plain = shown(shell, "topic", "show", topic)
    assert f"created {text(created_ms, UTC)} UTC" in plain
    assert "first stored (UTC)" in plain
    for local in (
        shown(shell, "--local-time", "topic", "show", topic),
        shown(shell, "topic", "show", topic, KEELMQ_LOCAL_TIME="1"),
    ):
        assert f"created {text(created_ms, INDIA)}+05:30 local time" in local
        assert f" {text(stored_ms, INDIA)}+05:30 " in local
        assert "first stored (local time)" in local
        assert "UTC" not in local
    assert (
        shown(shell, "--local-time", "topic", "show", topic, "--json") == shell("topic", "show", topic, "--json").stdout
    )


def test_the_columns_of_the_log_stay_below_their_headings(shell: Shell, topic: str) -> None:
    for arguments in ([], ["--local-time"]):
        heading, *lines = shown(shell, *arguments, "log", "dump", "--max", "5").splitlines()
        assert len(lines) == 5
        assert {line[heading.index("commands") - 2 :][:2] for line in lines} == {"  "}
    assert "time (local time)" in heading
    assert any("+05:30  " in line for line in lines)
