"""The Raft safety checkers of one cluster, fed by all of its nodes."""

from .checkers.committed_kept import CommittedKept
from .checkers.election_safety import ElectionSafety
from .checkers.log_matching import LogMatching
from .checkers.state_machine_safety import StateMachineSafety


class Safety:
    def __init__(self) -> None:
        self.election = ElectionSafety()
        self.matching = LogMatching()
        self.committed = CommittedKept()
        self.machine = StateMachineSafety()
