"""Why nobody leads: what a node says by what it knows of every voter, and of itself."""

import logging

import msgspec
import pytest

from raft.election import election
from raft.election.vacancy import LOOK, RECOVER, SAID_AGAIN_S, START
from raft.messages import PreVote, PreVoteReply, ReplicaState, StateAt, Vitals
from store.state.state_history import HASH_KIND
from tests.unit.raft import test_disk_health
from tests.unit.raft.test_disk_health import Time, World

time = test_disk_health.time
NEW = "its disk is new"


class Voters(World):
    """Node 1, whose log ends at entry 2, and what 2 and 3 say of themselves."""

    def tell(
        self, peer: int, *, votes: bool = True, applied: int = 2, unapplied: int = 0, differs_from: int = 0
    ) -> None:
        clocks = self.node.clocks
        replica = ReplicaState(HASH_KIND, StateAt(applied, b"", -1, 0), votes, (), differs_from)
        vitals = Vitals(clocks.wall_ms(), int(clocks.steady_ms()), replica=replica, unapplied=unapplied)
        self.node.on_message(peer, vitals)

    def forget(self) -> None:
        self.node.state.journal.lose_vote()

    def says(self) -> str | None:
        return self.node.vacancy.waits_for()

    def next(self) -> str:
        return self.node.vacancy.next_step()

    def elections(self, count: int, *, told: dict[int, bool], refused_by: tuple[int, ...] = ()) -> None:
        """Let elections be due this many times, while each of `told` says whether it votes."""
        asked = 0
        for _ in range(count * 20):
            self.time.now_s += self.config.election_timeout_ms / 10_000
            for peer, votes in told.items():
                self.tell(peer, votes=votes)
            self.transport.sent.clear()
            self.node.step()
            for peer, message in self.transport.sent:
                if isinstance(message, PreVote) and peer in refused_by:
                    asked += 1
                    self.node.on_message(peer, PreVoteReply(message.term, message.term, False))
        assert asked or not refused_by


def test_a_voter_whose_disk_is_new_is_named_though_it_answers(time: Time) -> None:
    voters = Voters(time)
    voters.tell(2, votes=False)
    voters.tell(3, votes=False)
    assert voters.says() == f"2 of 3 voters are needed; answering without a vote: 2 ({NEW}), 3 ({NEW})"
    assert voters.next() == RECOVER, "there is nobody to be started"
    assert str(voters.says()) in voters.node.vacancy.why_nobody_leads()
    voters.tell(3)
    assert voters.says() is None, "with node 3 it is a majority"


def test_silent_voters_come_first(time: Time) -> None:
    voters = Voters(time)
    voters.tell(2, votes=False)
    silent = "2 of 3 voters are needed, not heard: 3 (never heard)"
    assert voters.says() == f"{silent}; answering without a vote: 2 ({NEW})"
    assert voters.next() == START, "node 3 and this one are a majority"
    voters.forget()
    own = f"this node does not stand for election: {election.NEW_DISK}"
    assert voters.says() == f"{silent}; answering without a vote: 2 ({NEW}); {own}"
    assert voters.next() == f"{START}. That is not enough: {RECOVER}"


def test_a_voter_that_differs_has_no_vote(time: Time) -> None:
    voters = Voters(time)
    voters.tell(2, votes=False, differs_from=7)
    assert "answering without a vote: 2 (its copy of the data differs)" in str(voters.says())


def test_the_last_word_of_who_is_silent_is_not_believed(time: Time) -> None:
    voters = Voters(time)
    voters.tell(2, votes=False)
    time.now_s += 10
    assert "without a vote" not in str(voters.says())


def test_the_entry_that_is_waited_for_is_named_though_a_majority_answers(time: Time) -> None:
    voters = Voters(time)
    voters.tell(2)
    voters.node.state.knowledge.told_committed(4, 9)
    entry = "entry 9 of term 4 is committed, and the log here ends at entry 2 of term 1; waiting for a node that has it"
    assert voters.says() == f"not heard: 3 (never heard); this node does not stand for election: {entry}"
    assert voters.next() == START
    voters.tell(3)
    assert voters.says() == f"this node does not stand for election: {entry}"
    assert "Going on without committed entries" in voters.next()


def test_who_is_refused_says_by_whom_and_why(time: Time) -> None:
    voters = Voters(time)
    voters.elections(4, told={2: True}, refused_by=(2,))
    assert "no vote from 2 (it answers and refuses)" in str(voters.says())
    voters.tell(2, applied=2, unapplied=5)
    reason = "it knows that entry 7 is committed, and the log here ends at entry 2"
    assert f"no vote from 2 ({reason})" in str(voters.says())
    voters.tell(3)
    assert voters.says() is None or voters.next() == LOOK


def test_a_blank_disk_in_an_old_cluster_is_a_new_disk(time: Time) -> None:
    voters = Voters(time)
    voters.forget()
    voters.log.truncate_from(2)
    assert voters.node.state.has_blank_log
    voters.tell(2, applied=1, votes=False)
    assert voters.says() == "the first election of a cluster needs every node: no vote from 3 (never heard)"
    voters.tell(2, applied=90)
    text = str(voters.says())
    assert f"this node does not stand for election: {election.NEW_DISK}" in text
    assert "If it is the cluster that is new, the data directories of 2" in text


def test_the_reason_is_logged_once_and_again_when_it_changes(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    voters = Voters(time)
    voters.forget()

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]

    voters.elections(4, told={2: True, 3: True})
    assert len(lines()) == 1, lines()
    assert lines()[0] == f"no leader: this node does not stand for election: {election.NEW_DISK}"
    voters.elections(4, told={2: False, 3: True})
    assert len(lines()) == 2
    time.now_s += SAID_AGAIN_S
    voters.elections(4, told={2: False, 3: True})
    assert len(lines()) == 3


def test_a_learner_names_the_voters_that_are_missing(time: Time) -> None:
    """Learners said only that no leader is known."""
    learner = Voters(time)
    state = learner.node.state
    configuration = state.configuration
    voters = [
        each if each.node_id != 1 else msgspec.structs.replace(each, voter=False) for each in configuration.members
    ]
    state.membership.append(3, msgspec.structs.replace(configuration, members=tuple(voters)))
    assert not state.is_voter
    learner.tell(2)
    assert learner.says() == "2 of 2 voters are needed, not heard: 3 (never heard)"
    assert learner.next() == START
    learner.tell(3)
    assert learner.says() is None
    state.membership.append(4, msgspec.structs.replace(configuration, members=tuple(voters[1:])))
    assert learner.says() is None, "it was removed: the others owe it nothing"
