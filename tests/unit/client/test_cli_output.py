"""Contents of messages do not reach the terminal as commands."""

import json

import pytest

from keelmq.admin import TimelineEvent
from keelmq.cli.messages.timeline import print_timeline
from keelmq.cli.output import fail, print_json, print_table, say
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
