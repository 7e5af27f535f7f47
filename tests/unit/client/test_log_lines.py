"""Lines of the SDK's log: one line for each event, in which foreign text cannot move the cursor or begin a line."""

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import keelmq
from keelmq.consuming.attempts import log_failed_attempt
from keelmq.consuming.faults import Faults
from keelmq.consuming.redelivery import RetryLater, wish_of
from keelmq.errors import NotFound, QueueLost
from keelmq.message import ReceivedMessage
from keelmq.printable import one_line

HOSTILE = "no stock\x1b[2J\x1b]0;owned\x07\r\n2026-11-24 ERROR keelmq: all is lost\u2028\u202e\x9b31m\ud800"
SDK = Path(keelmq.__file__).parent


class Unprintable(Exception):
    """An error of an application that cannot say what it is."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Written:
    """Text that a stream handler with a usual format writes."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().split("\n")[:-1]


@pytest.fixture
def written() -> Iterator[Written]:
    made, logger = Written(), logging.getLogger("keelmq")
    logger.addHandler(made.handler)
    logger.setLevel(logging.INFO)
    yield made
    logger.removeHandler(made.handler)
    logger.setLevel(logging.NOTSET)


def raised(error: Exception) -> Exception:
    """Return the error with a traceback."""
    try:
        raise error
    except Exception as exc:
        return exc


def message() -> ReceivedMessage:
    return ReceivedMessage(topic="orders", queue=1, offset=7, message_id="order-7", body=b"")


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("kind", [ValueError, RetryLater])
def test_a_failed_attempt_is_one_line(written: Written, kind: type[Exception], attempt: int) -> None:
    failure = RetryLater(reason=HOSTILE) if kind is RetryLater else raised(ValueError(HOSTILE))
    log_failed_attempt(failure, [message()], attempt, "given back")
    (line,) = written.lines
    assert line.isprintable()
    for part in ("orders/1", "order-7", "offset 7", f"attempt {attempt}", kind.__name__, r"no stock\x1b[2J"):
        assert part in line
    assert line.endswith("; given back")


def test_the_traceback_is_shown_at_debug_level(written: Written) -> None:
    logging.getLogger("keelmq").setLevel(logging.DEBUG)
    log_failed_attempt(raised(ValueError(HOSTILE)), [message()], 1, "given back")
    line, about, *traceback = written.lines
    assert "order-7" in line
    assert about.startswith("DEBUG keelmq: ")
    assert "order-7" in about
    assert traceback[0].strip() == "Traceback (most recent call last):"
    assert any("in raised" in each for each in traceback)
    assert all(each.startswith("    ") and each.isprintable() for each in traceback), (
        "none looks like a line of its own"
    )


def test_a_long_text_is_cut(written: Written) -> None:
    log_failed_attempt(ValueError("x" * 1_000_000), [message()], 1, "given back")
    (line,) = written.lines
    assert len(line) < 1_500
    assert "999000 more characters" in line
    assert line.endswith("; given back")


def test_an_error_without_a_text_is_logged_and_given_back(written: Written) -> None:
    log_failed_attempt(Unprintable(), [message()], 1, "given back")
    (line,) = written.lines
    assert "Unprintable" in line
    assert wish_of(Unprintable())[1].startswith("Unprintable")


def test_what_on_fault_raises_is_one_line(written: Written) -> None:
    def on_fault(fault: Exception, messages: object) -> None:
        raise ValueError(HOSTILE)

    Faults(on_fault).tell(QueueLost("queue_lost", "x"), ())
    (line,) = written.lines
    assert line.isprintable()
    assert "ValueError" in line


def test_texts_of_the_broker_are_escaped(written: Written) -> None:
    logging.getLogger("keelmq").warning("group %s: not left: %s", "g", NotFound("not_found", HOSTILE))
    (line,) = written.lines
    assert line.isprintable()


def test_every_module_logs_by_the_logger_that_escapes() -> None:
    """A logger of another name would have no filter, and an import of the logger installs it."""
    others = [
        path.relative_to(SDK)
        for path in SDK.rglob("*.py")
        if path.name != "line_log.py" and re.search(r"getLogger|^import logging\.", path.read_text(), re.MULTILINE)
    ]
    assert others == []


def test_what_people_write_stays() -> None:
    assert one_line("Grüße, 訂單 \U0001f44d C:\\x1b") == "Grüße, 訂單 \U0001f44d C:\\x1b"
