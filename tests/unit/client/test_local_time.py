"""`when` shows UTC, or the zone of the machine with the offset of that moment."""

import time
from collections.abc import Iterator
from typing import Final

import pytest
from typer.testing import CliRunner

from keelmq.cli import output
from keelmq.cli.app import app

BERLIN: Final = "CET-1CEST,M3.5.0,M10.5.0/3"
WINTER_MS: Final = 1_767_225_600_123  # 2026-01-01T00:00:00.123Z
SUMMER_MS: Final = 1_782_864_000_000  # 2026-07-01T00:00:00Z
TWICE_MS: Final = 1_792_890_000_000  # 2026-10-25T01:00:00Z, an hour after the same time of day


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", BERLIN)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def local(berlin: None) -> Iterator[None]:
    token = output.LOCAL_TIME.set(True)
    yield
    output.LOCAL_TIME.reset(token)


@pytest.mark.usefixtures("berlin")
def test_times_are_utc_unless_asked_otherwise() -> None:
    assert output.when(WINTER_MS) == "2026-01-01 00:00:00.123"
    assert output.zone() == "UTC"
    assert output.when(0) is None


@pytest.mark.usefixtures("local")
def test_a_local_time_has_the_offset_of_its_moment() -> None:
    assert output.when(WINTER_MS) == "2026-01-01 01:00:00.123+01:00"
    assert output.when(SUMMER_MS) == "2026-07-01 02:00:00.000+02:00"
    hour_ms = 3_600_000
    assert output.when(TWICE_MS - hour_ms) == "2026-10-25 02:00:00.000+02:00"
    assert output.when(TWICE_MS) == "2026-10-25 02:00:00.000+01:00"
    assert output.zone() == "local time"
    assert output.when(None) is None


def test_a_variable_that_says_neither_yes_nor_no_is_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["topic", "list"], env={"KEELMQ_LOCAL_TIME": "Berlin"})
    assert done.exit_code == 2
    assert "KEELMQ_LOCAL_TIME" in done.stderr or "--local-time" in done.stderr
