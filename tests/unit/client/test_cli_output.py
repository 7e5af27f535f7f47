"""Contents of messages do not reach the terminal as commands."""

import io
import json
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

from keelmq.admin import TimelineEvent
from keelmq.cli.messages.timeline import print_timeline
from keelmq.cli.output import confirm, fail, fitting_table, print_json, print_table, say
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


@pytest.mark.parametrize("may_be_done", [False, True])
def test_an_error_says_whether_what_was_asked_for_may_be_done(
    capsys: pytest.CaptureFixture[str], may_be_done: bool
) -> None:
    """Also where the error is one that certainly changes nothing: an earlier try of the call was not answered."""
    error = NotFound("topic_not_found", "topic orders does not exist", status=404)
    error.outcome_unknown = may_be_done
    for as_json in (False, True):
        with pytest.raises(typer.Exit):
            fail(error, as_json=as_json)
    *lines, document = capsys.readouterr().err.splitlines()
    assert ("hint: it may or may not have taken effect; look before you repeat it" in lines) is may_be_done
    assert json.loads(document)["error"]["outcome_unknown"] is may_be_done


def test_a_pipe_gets_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("kept for", ["kind", "subject", "bytes"], [["message", "日本", 199], [None, "order history", 20_000]])
    print_table(None, ["group"], [])
    assert capsys.readouterr().out.splitlines() == [
        "kept for",
        "kind     subject        bytes",
        "message  日本             199",
        "-        order history  20000",
        "group",
    ]


def drawn(width: int, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines that a terminal of this width shows of a table; none may be wider."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as shown:
        console.print(fitting_table(console, None, columns, rows))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_a_table_that_is_too_wide_is_turned_and_one_that_is_still_too_wide_divided() -> None:
    columns = ["node", *(f"figure {number}" for number in range(8))]
    rows = [[node, *[f"value {node}"] * 7, None] for node in (1, 2, 3)]
    wide, turned, divided = (drawn(width, columns, rows) for width in (120, 60, 30))
    assert (len(wide), len(turned), len(divided)) == (7, 12, 36)
    assert turned[1].split("┃")[1:5] == [" node     ", " 1       ", " 2       ", " 3       "]
    for lines in (wide, turned, divided):
        assert sum(line.count(f"value {node}") for line in lines for node in (1, 2, 3)) == 21
        assert sum(line.count("figure ") for line in lines) == (24 if lines is divided else 8)


def test_a_terminal_narrower_than_a_cell_folds_it() -> None:
    assert drawn(20, ["node", "url"], [[None, "http://10.0.0.17:7081"]])


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
