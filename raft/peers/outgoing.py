"""Sends messages to one peer over both lanes, which act as one connection: when one ends, both do."""

from collections.abc import Callable

from raft.errors import ProtocolError
from raft.library import now
from raft.messages import Append, Arrived, Message, encode
from raft.peers.frames import FrameProtocol
from raft.peers.lanes import ARRIVED_BYTES, DATA, DataLane

UNSENT_CONTROL_BYTES_MAX = 1024 * 1024
"""Limit of the bytes in the control lane's buffer beyond which messages are dropped, since the peer reads nothing."""
WAITING_DATA_BYTES_MAX = 96 * 1024 * 1024
"""Limit of the bytes that wait in the data lane: more than a full lane and the largest entry."""
SHARED_BYTES_MAX = 256 * 1024
"""Limit of the bytes of an encoded message that is kept for the next peer."""
SIGN_INTERVAL_S = 0.05
"""Minimum seconds between two reports of arrivals to the handlers, which use them as a sign of life only."""


Encode = Callable[[Message | Append, int], list[bytes]]


class SharedEncoding:
    """Encodes messages for all peers, and one that is sent to several peers in turn only once."""

    def __init__(self) -> None:
        self._message: Message | Append | None = None
        self._level = 0
        self._parts: list[bytes] = []

    def __call__(self, message: Message | Append, level: int) -> list[bytes]:
        """Return what `encode` returns. The list is shared between the peers and must not be changed."""
        if message is self._message and level == self._level:
            return self._parts
        parts = encode(message, level)
        is_small = sum(map(len, parts)) <= SHARED_BYTES_MAX
        self._message, self._level, self._parts = (message, level, parts) if is_small else (None, 0, [])
        return parts


class Outgoing:
    """Owns both lanes to a peer, which were welcomed by the same disk. The owner closes both when one has ended. Use it
    only on the event loop.
    """

    def __init__(
        self,
        control: FrameProtocol,
        data: FrameProtocol,
        election_timeout_ms: int,
        level: int,
        on_sign: Callable[[Arrived], None],
        encode_data: Encode = encode,
    ) -> None:
        """Create the sender; `level` is the highest feature level that the peer knows, and limits the messages sent to
        it. `encode_data` encodes what the data lane carries.
        """
        self._control, self._data, self._level = control, data, level
        self._encode = encode_data
        self._lane = DataLane(data.write, election_timeout_ms)
        self._on_sign = on_sign
        self._sign_term, self._sign_at_s = 0, float("-inf")
        data.on_message = self._on_arrived

    def send(self, message: Message | Append, lane: int) -> bool:
        """Return whether the message was handed over; the payloads stay the caller's and must not change until they are
        sent.
        """
        if lane == DATA:
            if self._lane.waiting_bytes > WAITING_DATA_BYTES_MAX:
                return False
            self._lane.send(self._encode(message, self._level))
            return True
        if self._control.unsent_bytes > UNSENT_CONTROL_BYTES_MAX:
            return False
        self._control.write(encode(message, self._level))
        return True

    @property
    def data_waits(self) -> bool:
        return self._lane.waiting_bytes > 0

    @property
    def is_full(self) -> bool:
        return self._lane.is_full

    def drop_waiting(self) -> None:
        self._lane.drop_waiting()

    def close(self) -> None:
        """Close both lanes. Written control messages are still sent; data is dropped, since it would keep a slow link
        busy in vain.
        """
        self._control.close()
        self._data.abort()

    def _on_arrived(self, _: FrameProtocol, message: Message | Append) -> None:
        if not isinstance(message, Arrived):
            raise ProtocolError("a peer may send nothing but reports of arrived bytes on a data lane")
        self._lane.arrived(message.total_bytes)
        if message.term > self._sign_term or now() - self._sign_at_s >= SIGN_INTERVAL_S:
            self._sign_term, self._sign_at_s = message.term, now()
            self._on_sign(message)


class LanedSender:
    """The sending part of a transport; `outgoing` has an entry for each connected peer."""

    outgoing: dict[int, Outgoing]

    def send_by(self, lane: int, peer: int, message: Message | Append) -> bool:
        outgoing = self.outgoing.get(peer)
        return outgoing is not None and outgoing.send(message, lane)

    def send_behind(self, peer: int, message: Message | Append) -> bool:
        return self.send_by(DATA, peer, message)

    def data_waits(self, peer: int) -> bool:
        return peer in self.outgoing and self.outgoing[peer].data_waits

    def is_full(self, peer: int) -> bool:
        return peer in self.outgoing and self.outgoing[peer].is_full

    def drop_waiting(self, peer: int) -> None:
        if peer in self.outgoing:
            self.outgoing[peer].drop_waiting()


class Arriving:
    """The receiving end of a data lane: reports the number of arrived bytes, whole messages or not."""

    def __init__(self, connection: FrameProtocol, on_data_arrives: Callable[[], int | None]) -> None:
        """Create the receiver. `on_data_arrives()` notes the sign of life and returns the term for the answer, or None
        for no answer.
        """
        self._on_data_arrives = on_data_arrives
        self._reported_bytes = 0
        self._connection = connection

    def __call__(self, total_bytes: int) -> None:
        if total_bytes - self._reported_bytes >= ARRIVED_BYTES:
            self._reported_bytes = total_bytes
            term = self._on_data_arrives()
            if term is not None:
                self._connection.write(encode(Arrived(term, total_bytes)))
