"""The recorder of terminal pictures draws the final contents of the screen."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy import record_terminal
from deploy.record_terminal import Screen, picture, record

LIVE = """
from rich.console import Console
from rich.live import Live
from rich.text import Text

console = Console()
with Live(Text("frame 1\\nhalf"), console=console, auto_refresh=False) as live:
    live.update(Text("frame 2\\nready", style="bold green"), refresh=True)
console.print("the end")
"""


def shown(*parts: str, columns: int = 20) -> list[str]:
    screen = Screen(columns)
    for part in parts:
        screen.feed(part)
    return screen.lines()


def test_what_is_drawn_over_is_gone() -> None:
    assert shown("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\r\n") == ["three"]
    assert shown("progress 10 %\rdone\x1b[K") == ["done"]


def test_a_line_that_is_too_long_goes_on_below() -> None:
    assert shown("abcdef\r\ngh", columns=4) == ["abcd", "ef", "gh"]
    assert shown("abcd\r\nef", columns=4) == ["abcd", "ef"]


def test_colours_stay_and_a_sequence_may_come_in_two_parts() -> None:
    assert shown("\x1b[1;3", "1mbad\x1b[0m good") == ["\x1b[0m\x1b[1;31mbad\x1b[0m good"]


def test_an_unknown_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="does not know"):
        shown("\x1b[5;7H")
    with pytest.raises(ValueError, match="does not know"):
        shown("\x1b7\r\n")


def test_a_picture_is_drawn_of_a_real_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, drawn = tmp_path / "program.py", tmp_path / "picture.svg"
    program.write_text(LIVE)
    monkeypatch.setattr(sys, "argv", ["record_terminal", str(drawn), sys.executable, str(program)])
    assert record_terminal.main() == 0
    svg = drawn.read_text()
    assert re.findall(r"https?://(?!www\.w3\.org|www\.textualize\.io)", svg) == []
    words = "".join(ElementTree.fromstring(svg).itertext())
    assert "ready" in words
    assert "the end" in words.replace("\xa0", " ")
    assert "frame 1" not in words.replace("\xa0", " ")


def test_a_command_that_fails_leaves_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tmp_path / "picture.svg"
    monkeypatch.setattr(sys, "argv", ["record_terminal", str(drawn), sys.executable, "-c", "raise SystemExit(3)"])
    assert record_terminal.main() == 1
    assert not drawn.exists()


def test_the_lines_are_those_of_the_command() -> None:
    assert record([sys.executable, "-c", "print('a'); print('b')"]) == (0, ["a", "b"])
    assert "a&#160;b" in picture(["echo"], ["a b"])
