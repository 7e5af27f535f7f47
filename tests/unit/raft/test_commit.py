"""Commits of a leader: with the acknowledgement that allows it, and nothing before its own no-op."""

from collections.abc import Callable

from raft.library import LEADER
from raft.messages import AppendReply
from raft.replication.progress import WINDOW_MESSAGES
from tests.unit.raft.test_joining import Started, advance, member

__all__ = ["advance"]


def leader_of_three(advance: Callable[[float], None]) -> Started:
    """Return node 1, which leads with nodes 2 and 3 as the other voters and has committed everything."""
    one = Started(1, joins=False)
    advance(10)
    one.settle()
    for peer in (2, 3):
        one.connect(peer)
        for voter in (False, True):
            configuration = one.node.state.configuration
            following = (
                configuration.with_voter(peer) if voter else configuration.with_learner(member(peer, voter=False))
            )
            one.node.proposing.propose_configuration(following, lambda *_: None)
            one.settle()
            for each in range(2, peer + 1):
                acknowledge(one, each)
                one.settle()
    assert one.node.state.role == LEADER
    assert one.node.state.commit_index == one.log.last_index
    return one


def acknowledge(one: Started, peer: int) -> None:
    """Let the peer have all of node 1's log on its disk."""
    one.node.on_message(peer, AppendReply(one.node.state.term, True, one.log.last_index, counts=True, votes=True))


def test_an_acknowledgement_commits_without_a_step(advance: Callable[[float], None]) -> None:
    one = leader_of_three(advance)
    node, outcomes = one.node, []
    index = node.proposing.propose(b"", lambda entry, _: outcomes.append(entry and entry.index))
    one.log.sync()
    node.on_synced()
    assert not node.may_commit
    acknowledge(one, 2)
    assert (node.may_commit, node.wants_step) == (True, False)
    node.advance()
    assert (node.state.commit_index, outcomes) == (index, [index])


def test_a_copy_of_the_majority_commits_no_more_than_the_own_disk_holds(advance: Callable[[float], None]) -> None:
    one = leader_of_three(advance)
    node = one.node
    before = node.state.commit_index
    index = node.proposing.propose(b"", lambda *_: None)
    acknowledge(one, 2)
    acknowledge(one, 3)
    node.advance()
    assert (node.state.commit_index, node.may_commit) == (before, False)
    one.log.sync()
    node.on_synced()
    node.advance()
    assert node.state.commit_index == index


def test_copies_that_a_new_connection_may_have_lost_commit_nothing(advance: Callable[[float], None]) -> None:
    """The end of what a majority holds is remembered between two acknowledgements: not beyond a connection."""
    one = leader_of_three(advance)
    node = one.node
    before = node.state.commit_index
    index = node.proposing.propose(b"", lambda *_: None)
    for peer in (2, 3):
        acknowledge(one, peer)
    node.advance()
    assert (node.commit_limit, node.state.commit_index) == (index, before)  # the own disk does not hold it
    for peer in (2, 3):
        one.disconnect(peer)
        one.connect(peer)
    one.log.sync()  # and the loop has not heard of it yet
    node.advance()
    node.step()
    assert node.state.commit_index == before
    for peer in (2, 3):
        acknowledge(one, peer)
    node.advance()
    assert node.state.commit_index == index


def test_nothing_of_an_earlier_term_is_committed_before_the_own_no_op_is_durable(
    advance: Callable[[float], None],
) -> None:
    """Seed 8400013: the followers had the no-op on disk before the leader had, and it committed what it had synced."""
    one = leader_of_three(advance)
    node = one.node
    node.proposing.propose(b"", lambda *_: None)
    one.log.sync()
    node.on_synced()
    durable, committed = one.log.synced_index, node.state.commit_index
    assert durable > committed
    node.state.library.step_down()
    node.state.library.set_term(node.state.term + 1, 1)
    node.state.library.become_leader()
    no_op = one.log.last_index
    assert (node.replication.leads_from, one.log.synced_index) == (no_op, durable)
    acknowledge(one, 2)
    acknowledge(one, 3)
    node.advance()
    assert (node.state.commit_index, node.may_commit) == (committed, False)
    one.log.sync()
    node.on_synced()
    node.advance()
    assert node.state.commit_index == no_op


def test_a_leadership_that_ends_leaves_nothing_to_send(advance: Callable[[float], None]) -> None:
    """A follower that had answered and lacked entries kept the former leader going on for every event."""
    one = leader_of_three(advance)
    node = one.node
    for number in range(2 * WINDOW_MESSAGES):
        node.proposing.propose(b"%d" % number, lambda *_: None)
    node.on_message(
        2, AppendReply(node.state.term, True, one.log.last_index - WINDOW_MESSAGES, counts=True, votes=True)
    )
    assert node.replication.may_send_on
    node.state.library.step_down()
    assert not node.replication.may_send_on
