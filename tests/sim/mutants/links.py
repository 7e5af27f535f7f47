"""Slow links: lanes, their pace, and what counts as contact, broken."""

import raft.lanes
import raft.node
from raft.handlers import SafeSyncObj
from raft.lanes import DATA, Pace
from raft.messages import Append, Message
from raft.progress import Progress
from tests.sim import sim_transport
from tests.sim.variant import Swap, mutant


def puts_all_into_one_lane(message: Message | Append) -> int:
    """Heartbeats, votes and answers stand behind the data, and only what has arrived whole is contact."""
    return DATA


class HearsWholeMessagesOnly(SafeSyncObj):
    """Bytes of a large entry that arrive are no sign of life."""

    def data_arrives(self, peer: int) -> int:
        return int(self.term)


class HandsEverythingOver(Pace):
    """All that there is to send is given to the connection at once, for its queues to keep."""

    @property
    def room_bytes(self) -> int:
        return 1 << 62


class ClaimsWhatIsOnItsWay(SafeSyncObj):
    """A heartbeat names the last entry that was sent, and overtakes it."""

    def _send_heartbeat(self, peer: int, progress: Progress) -> None:
        progress.announced_commit = self.commit_index
        self.send(peer, self._append_after(progress.next_index - 1))


MUTANTS = (
    mutant(
        0,
        Swap(sim_transport, "lane_of", puts_all_into_one_lane),
        Swap(raft.node, "SafeSyncObj", HearsWholeMessagesOnly),
    ),
    mutant(0, Swap(raft.lanes, "Pace", HandsEverythingOver)),
    mutant(0, Swap(raft.node, "SafeSyncObj", ClaimsWhatIsOnItsWay)),
)
