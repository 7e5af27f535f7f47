"""Frames out of the bytes of a peer connection."""

import sys

from raft.messages import Append, Hello, Message, encode
from raft.peers.frames import FrameProtocol


async def test_a_view_that_somebody_holds_costs_no_connection() -> None:
    """The watch of the loop looks at its stack from a thread, and holds what is in the frames for a moment."""
    held, messages = list[memoryview](), list[Message | Append]()

    def take(_: FrameProtocol, message: Message | Append) -> None:
        held.append(memoryview(sys._getframe(1).f_locals["buffer"]))
        messages.append(message)

    protocol, frame = FrameProtocol(take), b"".join(encode(Hello("shop", 2, 1, 2, "a")))
    protocol.data_received(frame + frame[:9])
    protocol.data_received(frame[9:])
    assert len(held) == 2
    assert messages == [messages[0]] * 2
