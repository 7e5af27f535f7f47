"""Run a command in a terminal of its own and draw the screen that it leaves as an SVG picture.

    .venv/bin/python -m deploy.record_terminal docs/demo.svg make demo

The picture shows what the command printed, with its colours and with everything that it drew over. What the command
prints is passed through to standard output as well. No picture is written when the command fails.
"""

import argparse
import codecs
import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

COLUMNS: Final = 100
ROWS: Final = 60
"""Height of the terminal in lines: a live view that is higher would be cut by the program that draws it."""

READ_BYTES: Final = 64 * 1024
ESCAPE: Final = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
INCOMPLETE: Final = re.compile(r"\x1b(?:\[[?0-9;]*|\][^\x07\x1b]*)?$")
WEB_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rule by which an SVG of rich loads its font: without the rule, the picture refers to nothing on the network."""

FONTS: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono'"


class Cell(NamedTuple):
    """One character of the screen, and the SGR parameters (colour, weight) in force when it was written."""

    character: str
    sgr: str


class Screen:
    """The lines that a terminal of `columns` columns shows, from the first one that was printed.

    It understands what programs use that redraw lines: carriage return, line feed, cursor up and down, erasing of a
    line, colours. It scrolls nothing away, and counts every character as one column wide.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[Cell]] = [[]]
        self._row = 0
        self._column = 0
        self._sgr = ""
        self._pending = ""

    def feed(self, text: str) -> None:
        """Take over the next part of the output. Raises ValueError for an escape sequence that it does not know."""
        text = self._pending + text
        cut = INCOMPLETE.search(text)
        self._pending = text[cut.start() :] if cut else ""
        text = text[: cut.start()] if cut else text
        at = 0
        for match in ESCAPE.finditer(text):
            self._write(text[at : match.start()])
            if match[2]:
                self._obey(match[1], match[2])
            at = match.end()
        self._write(text[at:])

    def lines(self) -> list[str]:
        """Return the lines with their colours as SGR sequences, without spaces and empty lines at their ends."""
        shown = [_encoded(line) for line in self._lines]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._move_to(self._row + 1)
            elif character == "\r":
                self._column = 0
            elif character == "\x1b":
                raise ValueError("the output has an escape sequence that the recorder does not know")
            elif character >= " ":
                self._put(character)

    def _put(self, character: str) -> None:
        if self._column == self._columns:
            self._move_to(self._row + 1)
            self._column = 0
        line = self._lines[self._row]
        line.extend(Cell(" ", "") for _ in range(self._column + 1 - len(line)))
        line[self._column] = Cell(character, self._sgr)
        self._column += 1

    def _move_to(self, row: int) -> None:
        self._row = max(row, 0)
        self._lines.extend([] for _ in range(self._row + 1 - len(self._lines)))

    def _obey(self, parameters: str, command: str) -> None:
        count = int(parameters) if parameters.isdecimal() else 1
        if command == "m":
            self._sgr = "" if parameters in ("", "0") else f"{self._sgr};{parameters}".lstrip(";")
        elif command == "A":
            self._move_to(self._row - count)
        elif command == "B":
            self._move_to(self._row + count)
        elif command == "K" and parameters == "2":
            self._lines[self._row] = []
        elif command == "K" and parameters in ("", "0"):
            del self._lines[self._row][self._column :]
        elif not (command in "hl" and parameters.startswith("?")):  # such as the cursor that is hidden and shown
            raise ValueError(
                f"the output has the escape sequence {parameters}{command}, which the recorder does not know"
            )


def _encoded(line: list[Cell]) -> str:
    end = len(line)
    while end and line[end - 1].character == " ":
        end -= 1
    parts: list[str] = []
    sgr = ""
    for cell in line[:end]:
        if cell.sgr != sgr:
            parts.append(f"\x1b[0m\x1b[{cell.sgr}m" if cell.sgr else "\x1b[0m")
            sgr = cell.sgr
        parts.append(cell.character)
    return "".join(parts) + ("\x1b[0m" if sgr else "")


def record(command: list[str], columns: int = COLUMNS) -> tuple[int, list[str]]:
    """Run `command` in a terminal; return its exit status and the lines that stand on the screen at its end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    try:
        process = subprocess.Popen(  # noqa: S603
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
    finally:
        os.close(theirs)
    screen, decoder = Screen(columns), codecs.getincrementaldecoder("utf-8")("replace")
    with open(ours, "rb", buffering=0) as output:
        while data := _read(output):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            screen.feed(decoder.decode(data))
    return process.wait(), screen.lines()


def _read(output: io.FileIO) -> bytes:
    try:
        return output.read(READ_BYTES)
    except OSError:  # Linux says EIO when the last process has closed the terminal
        return b""


def picture(command: list[str], lines: list[str], columns: int = COLUMNS) -> str:
    """Return the SVG of a terminal in which `command` was typed and printed `lines`."""
    line = shlex.join(command)
    console = Console(file=io.StringIO(), record=True, width=columns, force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {line}", style="bold"), soft_wrap=True)
    for each in lines:
        console.print(Text.from_ansi(each), soft_wrap=True)
    console.print()  # rich cuts the feet of what stands in the last line
    drawn = console.export_svg(title=line, unique_id="terminal")
    return WEB_FONT.sub("", drawn).replace("Fira Code", FONTS)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.record_terminal", description="Draw what a command leaves on its terminal as SVG."
    )
    parser.add_argument("--columns", type=int, default=COLUMNS, help=f"width of the terminal (default {COLUMNS})")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command with its arguments")
    settings = parser.parse_args()
    if not settings.command:
        parser.error("name the command to run")
    status, lines = record(settings.command, settings.columns)
    if status != 0:
        print(f"record_terminal: the command ended with status {status}; no picture was written", file=sys.stderr)
        return 1
    settings.picture.write_text(picture(settings.command, lines, settings.columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
