"""Standard input of `keelmq send`: lines are sent as they come, and one interrupt is enough."""

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import typer
from typer.testing import CliRunner

from keelmq.cli.messages import send
from keelmq.cli.messages.lines import lines_of
from keelmq.limits import BODY_BYTES_MAX
from keelmq.message import Receipt, SendResult


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    """Return both ends of a pipe, of which a test closes the second."""
    read, write = os.pipe()
    with open(read, "rb") as stream:
        yield stream, write


async def test_a_line_does_not_wait_for_the_next_ones(pipe: tuple[BinaryIO, int]) -> None:
    read, write = pipe
    lines = lines_of(read)
    os.write(write, b"one\ntw")
    assert await anext(lines) == [b"one"]
    os.write(write, b"o\r\n\nthree")
    assert await anext(lines) == [b"two", b""]
    os.close(write)
    assert [each async for each in lines] == [[b"three"]]


async def test_waiting_for_a_line_can_be_interrupted(pipe: tuple[BinaryIO, int]) -> None:
    read, write = pipe
    waiting = asyncio.ensure_future(anext(lines_of(read)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.close(write)


def opened(path: str | Path) -> BinaryIO:
    return open(path, "rb")


async def test_lines_of_a_file_and_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    for path, expected in ((file, [[b"one", b"two"]]), (os.devnull, [])):
        with opened(path) as stream:
            assert [each async for each in lines_of(stream)] == expected
    assert [each async for each in lines_of(io.BytesIO(b"one\ntwo"))] == [[b"one"], [b"two"]]


async def test_a_line_without_an_end_is_not_gathered_for_ever() -> None:
    with opened("/dev/zero") as stream:
        (line,) = await anext(lines_of(stream))
    assert BODY_BYTES_MAX < len(line) < 2 * BODY_BYTES_MAX


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the bodies that the command sends to a producer that stores them."""
    bodies: list[bytes] = []

    class Stored:
        def __init__(self, **_: Any) -> None: ...

        async def __aenter__(self) -> "Stored":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def send(self, topic: str, body: bytes, **_: Any) -> SendResult:
            bodies.append(body)
            return SendResult("id", topic, 0, 0, Receipt(1, 1, 1, (1,)))

    monkeypatch.setattr("keelmq.producing.producer.Producer", Stored)
    return bodies


def run_send(*arguments: str, **options: Any) -> Any:
    app = typer.Typer()
    app.command()(send.send)
    return CliRunner().invoke(app, [*arguments], **options)


def test_a_body_is_read_while_an_interrupt_ends_the_process(sent: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """While an event loop runs, the first interrupt only asks it to end, which it cannot do in a read."""

    def read() -> bytes:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return b"all of it"

    monkeypatch.setattr(send, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=SimpleNamespace(read=read))))
    result = run_send("orders", "-")
    assert (result.exit_code, result.exception) == (0, None)
    assert sent == [b"all of it"]


def test_a_body_of_the_command_line_is_sent_as_the_bytes_that_were_typed(sent: list[bytes]) -> None:
    result = run_send("orders", os.fsdecode("grüße \xff".encode("latin-1")))
    assert (result.exit_code, result.exception) == (0, None)
    assert sent == ["grüße \xff".encode("latin-1")]


def test_lines_are_sent_in_order_and_empty_ones_are_not(sent: list[bytes]) -> None:
    result = run_send("orders", "--lines", input="one\n\ntwo\r\nthree")
    assert (result.exit_code, result.exception) == (0, None)
    assert sent == [b"one", b"two", b"three"]
