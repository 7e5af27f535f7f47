"""Log lines show data that clients sent, and cannot be forged by it."""

import json
import logging

from cluster.process.logging_setup import JsonFormatter, PlainFormatter

SENT = "/v1/\x1b[2J\x1b]0;owned\x07\r\n2026-01-01T00:00:00.000Z CRITICAL forged: line\x9b31m\x7f\ttail"


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("cluster.http.app", logging.ERROR, __file__, 1, "GET %s failed", (message,), None)


def test_plain_lines_have_no_control_characters_and_cannot_be_forged() -> None:
    first, second = PlainFormatter().format(record(SENT)).split("\n")
    assert (first + second).replace("\t", "").isprintable()
    assert r"\x1b[2J\x1b]0;owned\x07\x0d" in first
    assert second.startswith("    2026-01-01")
    assert r"\x9b31m\x7f" in second


def test_json_lines_have_none_either_and_mean_the_same() -> None:
    line = JsonFormatter().format(record(SENT))
    assert line.isprintable()
    assert json.loads(line)["message"] == f"GET {SENT} failed"
