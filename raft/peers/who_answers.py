"""Checks that a node answers at an address, before the address becomes that of a member."""

import asyncio

from raft.config import PeerAddress, RaftConfig
from raft.errors import ProtocolError
from raft.messages import Append, Challenge, Hello, Message, Welcome, encode
from raft.peers.frames import FrameProtocol
from raft.peers.handshake import HANDSHAKE_FRAME_BYTES, Opening, Refusal, no_peer
from raft.peers.sockets import dial
from raft.peers.tls import PeerTls

TIMEOUT_MS = 2_000


async def check_answers(config: RaftConfig, hello: Hello, address: PeerAddress, tls: PeerTls | None) -> None:
    """Check that the node that `hello` means answers at the address, as a node of the same cluster and with its secret.
    Raises OSError, ProtocolError, or TimeoutError after TIMEOUT_MS otherwise.

    `hello` names that node itself as its sender: so the node takes no connection for superseded, and if there is no
    other objection, the node refuses itself as a peer.
    """
    opening = Opening(config, hello)
    answer: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    def on_message(connection: FrameProtocol, message: Message | Append) -> None:
        if isinstance(message, Challenge):
            connection.write(encode(opening.prove(message)))
        elif isinstance(message, Welcome) and not answer.done():
            answer.set_result(message)
        else:
            raise ProtocolError("a peer may send only its part of the handshake on a connection to it")

    async with asyncio.timeout(TIMEOUT_MS / 1000):
        connection = await dial(
            lambda: FrameProtocol(on_message, HANDSHAKE_FRAME_BYTES), address, tls, hello.target_node_id
        )
        try:
            connection.write(encode(hello))
            connection.closed.add_done_callback(lambda _: answer.cancel())
            welcome = await answer
        except asyncio.CancelledError:
            if connection.closed.done():
                raise ProtocolError("the process that listens there is no node of this cluster") from None
            raise
        finally:
            connection.close()
    try:
        opening.accept(welcome)
    except Refusal:
        if not opening.is_proven(welcome) or welcome.refusal != no_peer(hello.target_node_id):
            raise
