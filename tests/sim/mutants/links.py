"""Broken ways to use slow links: their lanes, their pace, and the signs of contact."""

import raft.peers.lanes
from raft.entries.follower import Follower
from raft.messages import Append, Message
from raft.peers.lanes import DATA, Pace
from raft.replication.progress import Progress
from raft.replication.replication import Replication
from tests.sim import sim_transport
from tests.sim.mutants.parts import swap_part
from tests.sim.variant import Swap, mutant


def puts_all_into_one_lane(message: Message | Append) -> int:
    """Heartbeats, votes and answers stand behind the data, and only what has arrived whole is contact."""
    return DATA


class HearsWholeMessagesOnly(Follower):
    """Bytes of a large entry that arrive are no sign of life."""

    def data_arrives(self, peer: int) -> int:
        return self._state.term


class HandsEverythingOver(Pace):
    """All that there is to send is given to the connection at once, for its queues to keep."""

    @property
    def room_bytes(self) -> int:
        return 1 << 62


class ClaimsWhatIsOnItsWay(Replication):
    """A heartbeat names the last entry that was sent, and overtakes it."""

    def _send_heartbeat(self, peer: int, progress: Progress) -> None:
        progress.announced_commit = self._state.commit_index
        self._sender.send(peer, self._append_after(progress.next_index - 1))


MUTANTS = (
    mutant(
        0,
        Swap(sim_transport, "lane_of", puts_all_into_one_lane),
        swap_part(HearsWholeMessagesOnly),
    ),
    mutant(0, Swap(raft.peers.lanes, "Pace", HandsEverythingOver)),
    mutant(0, swap_part(ClaimsWhatIsOnItsWay)),
)
