"""The output of long commands: plain lines in a pipe, a live view on a terminal, and one result at the end."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from deploy.record_terminal import record
from deploy.reporting.report import Report
from deploy.reporting.result import PREFIX, result_line, result_of
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
PROGRAM = """
from deploy.reporting.report import Report

report = Report()
report.step("counting")
with report.live(lambda: "7 of 9", share=lambda: 7 / 9):
    report.event("an event of the block")
report.table("the table", ("name", "count"), [("first", 1_000), ("second", 20)])
report.result({"counted": 7})
"""


class Output(io.StringIO):
    """A stream that is no terminal and sets `said` when it gets the words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.said = threading.Event()

    def write(self, text: str) -> int:
        if self.words in text:
            self.said.set()
        return super().write(text)


def lines_of(output: io.StringIO) -> list[str]:
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_lines_of_progress_come_by_themselves_while_the_command_waits() -> None:
    output = Output("loading, 3 of 9, 33 %")
    report = Report(output, line_every_s=0.001)
    report.step("loading")
    with report.live(lambda: "3 of 9", share=lambda: 1 / 3):
        assert output.said.wait(PATIENCE_S), output.getvalue()
    count = output.getvalue().count("\n")
    assert "report-lines" not in {thread.name for thread in threading.enumerate()}
    report.event("done")
    assert output.getvalue().count("\n") == count + 1


def test_a_short_run_in_a_pipe_shows_its_last_progress() -> None:
    output = io.StringIO()
    done = 0
    with Report(output).live(lambda: f"{done} seeds"):
        done = 12
    (line,) = lines_of(output)
    assert line.endswith(" s  12 seeds")


def test_an_event_in_a_pipe_is_one_plain_line_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "20")):
        monkeypatch.setenv(name, value)
    output = io.StringIO()
    text = "[bold]not markup[/bold] " * 300
    Report(output).event(text, "fault")
    assert output.getvalue().partition(" s  ")[2] == text + "\n"


def test_a_row_of_a_table_in_a_pipe_is_one_line_and_numbers_are_right_aligned() -> None:
    output = io.StringIO()
    report = Report(output)
    report.table("files", ("name", "bytes", "sha256"), [("one", 1_234, "a" * 300), ("two", 5, "[red]")])
    report.table("more", (), [("key", "value")])
    assert lines_of(output) == [
        "files",
        f"name  bytes  sha256{' ' * 294}".rstrip(),
        f"one   1,234  {'a' * 300}",
        "two       5  [red]",
        "more",
        "key  value",
    ]


def test_a_terminal_keeps_events_and_table_and_not_the_live_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    status, lines = record([sys.executable, str(program)], columns=60)
    assert status == 0
    text = "\n".join(lines)
    assert text.count("an event of the block") == 1
    assert text.count("counting, 7 of 9, 78 %") == 1
    assert text.index("an event of the block") < text.index("7 of 9") < text.index("the table") < text.index("1,000")
    assert "┃" in text
    assert lines[-1] == 'RESULT {"counted": 7}'


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    program = tmp_path / "program.py"
    program.write_text(f"import os\nos.environ['TERM'] = 'dumb'\n{PROGRAM}")
    status, lines = record([sys.executable, str(program)], columns=60)
    assert status == 0
    assert "\x1b" not in "".join(lines)
    assert "┃" not in "".join(lines)


def test_a_result_is_read_back_from_the_last_line_only() -> None:
    result = {"seed": 7, "kinds": ["a"], "what": "line\nend"}
    line = result_line(result)
    assert result_of(f"something\n{line}\n") == result
    for output in ("", "something\n", f"{line}\nafter\n", f"{line}\n{line}\n"):
        with pytest.raises(ValueError, match="does not end with its only line"):
            result_of(output)
    assert line.startswith(PREFIX)
    assert os.linesep not in line
