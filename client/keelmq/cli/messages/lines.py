"""Lines of standard input as they come: none waits for those after it, and waiting for one can be interrupted."""

import asyncio
import io
import os
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from keelmq.limits import BODY_BYTES_MAX

READ_BYTES: Final = 1 << 20


async def lines_of(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    r"""Yield the lines that have come, without their ends (\n or \r\n), in order. The last line needs no end.

    A line longer than any body is yielded before it has ended, and is to be the last one that is asked for. Raises
    OSError. What the stream has buffered is left out.
    """
    rest = b""
    while data := await _next_bytes(stream):
        *ended, rest = (rest + data).split(b"\n")
        if len(rest) > BODY_BYTES_MAX + len(b"\r"):
            ended, rest = [*ended, rest], b""
        if ended:
            yield [line.removesuffix(b"\r") for line in ended]
    if rest:
        yield [rest.removesuffix(b"\r")]


async def _next_bytes(stream: BinaryIO) -> bytes:
    """Return what can be read, empty at the end. Raises OSError.

    A thread that reads could not be interrupted, and would keep the process from ending.
    """
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:  # a stream in memory
        return stream.read(READ_BYTES)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # a file, for which epoll has no use, because a read of it waits for nobody
        return os.read(descriptor, READ_BYTES)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)
