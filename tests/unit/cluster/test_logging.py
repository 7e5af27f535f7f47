"""Log lines show data that clients sent, and cannot be forged by it."""

import json
import logging

from cluster.process.line_pace import LINE_INTERVAL_S, LINES_PER_PLACE_MAX, LinePace
from cluster.process.logging_setup import JsonFormatter, PlainFormatter

SENT = "/v1/\x1b[2J\x1b]0;owned\x07\r\n2026-01-01T00:00:00.000Z CRITICAL forged: line\x9b31m\x7f\ttail\u2028more"


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("cluster.http.app", logging.ERROR, __file__, 1, "GET %s failed", (message,), None)


def test_plain_lines_have_no_control_characters_and_cannot_be_forged() -> None:
    first, second = PlainFormatter().format(record(SENT)).split("\n")
    assert (first + second).replace("\t", "").isprintable()
    assert r"\x1b[2J\x1b]0;owned\x07\x0d" in first
    assert second.startswith("    2026-01-01")
    assert r"\x9b31m\x7f" in second
    assert r"tail\u2028more" in second


def test_json_lines_have_none_either_and_mean_the_same() -> None:
    line = JsonFormatter().format(record(SENT))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"GET {SENT} failed"


def paced(pace: LinePace, lines: int, *, line: int = 1, level: int = logging.WARNING) -> list[str]:
    """Return the messages that are logged of so many lines from one place in the code."""
    records = [logging.LogRecord("x", level, "x.py", line, "line %d", (number,), None) for number in range(lines)]
    return [each.getMessage() for each in records if pace(each)]


def test_a_place_in_the_code_logs_some_lines_a_minute_and_tells_how_many_it_left_out() -> None:
    now_s = [0.0]
    pace = LinePace(lambda: now_s[0])
    assert len(paced(pace, LINES_PER_PLACE_MAX + 7)) == LINES_PER_PLACE_MAX
    assert paced(pace, 1, line=2) == ["line 0"], "another place"
    assert paced(pace, 1, level=logging.ERROR) == ["line 0"], "a bug that strangers' errors must not hide"
    now_s[0] = LINE_INTERVAL_S
    assert paced(pace, 2) == ["line 0 (7 such lines before this one were left out)", "line 1"]


def test_the_line_before_the_end_of_a_process_is_never_left_out() -> None:
    assert len(paced(LinePace(lambda: 0.0), 2 * LINES_PER_PLACE_MAX, level=logging.CRITICAL)) == 2 * LINES_PER_PLACE_MAX
