"""Reads and writes the frames of `raft/messages.py` on an asyncio connection."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

from raft.errors import ProtocolError
from raft.messages import FRAME, MAX_FRAME_BYTES, MAX_HEADER_BYTES, Append, Message, decode
from raft.peers.lanes import Part

log = logging.getLogger(__name__)

OnMessage = Callable[["FrameProtocol", Message | Append], None]


class FrameProtocol(asyncio.Protocol):
    """Calls `on_message(self, message)` for every whole, valid frame; any other input closes the connection.

    An exception of `on_message` other than ProtocolError is not handled here and propagates to the loop.
    """

    def __init__(self, on_message: OnMessage, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.on_message = on_message
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handshake_timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None  # None until a TLS handshake has succeeded
        self.max_frame_bytes = max_frame_bytes
        self.on_bytes: Callable[[int], None] | None = None
        """Called with the number of bytes received since this was set, before a frame that these bytes complete is
        handled.
        """
        self._counted_bytes = 0
        self._buffer = bytearray()
        self._wanted_bytes = FRAME.size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.closed.done():  # `close` or `abort` came before the connection
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport else 0

    def write(self, parts: Sequence[Part]) -> None:
        """Write one frame. It is lost if the connection is broken, like all data under way; `closed` is resolved soon
        then.
        """
        if self.transport and not self.transport.is_closing():  # uvloop raises where asyncio only drops
            self.transport.writelines(parts)

    def close(self) -> None:
        """Send all written data and end the connection; does nothing if the connection was never made."""
        if self.transport:
            self.transport.close()
        else:
            self.connection_lost(None)

    def abort(self) -> None:
        """End the connection at once, also one that is still being made; written data may be lost."""
        if self.transport:
            self.transport.abort()
        else:
            self.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.on_bytes is not None:
            self._counted_bytes += len(data)
            self.on_bytes(self._counted_bytes)
        if len(self._buffer) < self._wanted_bytes:
            return
        try:
            self._take_frames()
        except ProtocolError as error:
            log.warning("closing a peer connection: %s", error)
            self.abort()

    def _take_frames(self) -> None:
        buffer, start = self._buffer, 0
        # An error ends the connection; its trace may still hold views of the buffer, which then cannot be shortened.
        self._buffer = bytearray()
        with memoryview(buffer) as view:
            while True:
                self._wanted_bytes = FRAME.size
                if len(buffer) - start < FRAME.size:
                    break
                body_length, header_length, header_crc = FRAME.unpack_from(buffer, start)
                if body_length > self.max_frame_bytes or header_length > min(MAX_HEADER_BYTES, body_length):
                    raise ProtocolError(
                        f"a frame announces {body_length} bytes with a header of {header_length} bytes, too much"
                    )
                end = start + FRAME.size + body_length
                if len(buffer) < end:
                    self._wanted_bytes = end - start
                    break
                with view[start + FRAME.size : end] as body:
                    message = decode(body, header_length, header_crc)
                start = end
                self.on_message(self, message)
        try:
            del buffer[:start]
        except BufferError:  # an error's trace, or a thread that looks at this one's stack, holds a view
            buffer = buffer[start:]
        self._buffer = buffer
