"""Contents of messages do not reach the terminal as commands."""

import io
import json
from types import SimpleNamespace

import pytest
import typer

from keelmq.admin import TimelineEvent
from keelmq.cli.messages.timeline import print_timeline
from keelmq.cli.output import confirm, fail, print_json, print_table, say
from keelmq.errors import NotFound

SENT = "key\x1b[2J\x1b]0;owned\x07\r\x9b31m\x7f\u202e\u2028"
ESCAPED = r"key\x1b[2J\x1b]0;owned\x07\x0d\x9b31m\x7f\u202e\u2028"


def test_lines_tables_timelines_and_errors_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"tag={SENT}\tand\nmore")
    print_table(SENT, ["key"], [[SENT]])
    event = TimelineEvent(event=SENT, at_ms=1, raft_index=1)
    print_timeline(SENT, [event], lambda _: [SENT])
    with pytest.raises(BaseException, match="1"):
        fail(NotFound("not_found", SENT, status=404, extra={}), as_json=False)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert text.count(ESCAPED) == 7
    assert text.replace("\n", "").replace("\t", "").isprintable()


def test_json_is_exact_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"key": SENT})
    text = capsys.readouterr().out
    assert text.rstrip("\n").isprintable()
    assert json.loads(text) == {"key": SENT}


def answered(monkeypatch: pytest.MonkeyPatch, answer: bytes | None) -> int:
    """Return with which code the process ends when a question is answered so; None is an interrupt."""

    def interrupted() -> bytes:
        raise KeyboardInterrupt

    read = interrupted if answer is None else io.BytesIO(answer).readline
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=SimpleNamespace(readline=read), isatty=lambda: False))
    try:
        confirm("Delete topic orders?")
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def test_a_question_is_answered_with_yes_and_an_interrupt_ends_as_everywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [answered(monkeypatch, answer) for answer in (b"y\n", b"YES\r\n", b"yes")] == [0, 0, 0]
    capsys.readouterr()
    assert answered(monkeypatch, None) == 130
    assert capsys.readouterr().err == "Delete topic orders? [y/N] \n"


@pytest.mark.parametrize("answer", [b"", b"\n", b"n\n", b"yesterday\n", b"\xff\n"])
def test_without_a_yes_it_is_said_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    assert answered(monkeypatch, answer) == 1
    shown = capsys.readouterr()
    assert shown.out == "", "a JSON document may be what is printed there"
    assert shown.err.endswith("[y/N] \nnothing was done; --yes goes on without a question\n")
