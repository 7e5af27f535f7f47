"""A mixin that adds Raft's lanes to a test transport that has none."""

from raft.messages import Append, Message


class SingleLane:
    """Lane methods for transports that carry everything at once and in order."""

    def send_behind(self, peer: int, message: Message | Append) -> bool:
        return bool(self.send(peer, message))  # type: ignore[attr-defined]  # of the transport it is mixed into

    def data_waits(self, peer: int) -> bool:
        return False

    def is_full(self, peer: int) -> bool:
        return False

    def drop_waiting(self, peer: int) -> None:
        """Do nothing, because nothing waits."""
