"""Replicas that differ are found out: by which node, from which entry on, and what the differing one does."""

import asyncio
from pathlib import Path

import pytest

from raft.copies.replicas import Replicas
from raft.replication import chain_check
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.record import KIND_NOOP, Entry
from tests.rewrite import rewrite_record
from tests.unit.raft.members import Member, cluster, leader_of, message, propose_until_accepted, put_topic, same_state
from tests.unit.raft.test_transport import until

MESSAGES = 20


async def fill(members: list[Member], count: int = MESSAGES, name: str = "b") -> None:
    for number in range(count):
        await propose_until_accepted(members, lambda number=number: message(f"{name}{number}"))  # type: ignore[misc]


def flip_in_apply(member: Member, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Flip one bit, once, in the next data that the node's state machine writes for an entry."""
    flipped: list[int] = []
    put = Index.put

    def broken(index: Index, key: bytes, value: bytes) -> None:
        if index is member.index and not flipped and value and key != b"\x00applied":
            flipped.append(member.machine.applied_index + 1)
            value = bytes([value[0] ^ 1]) + value[1:]
        put(index, key, value)

    monkeypatch.setattr(Index, "put", broken)
    return flipped


@pytest.mark.parametrize("who", ["follower", "leader"])
async def test_the_one_whose_state_differs_stops_and_names_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await fill(members)
        await until(lambda: same_state(members))
        wrong = leader if who == "leader" else next(each for each in members if each is not leader)
        right = [each for each in members if each is not wrong]
        flipped = flip_in_apply(wrong, monkeypatch)
        await fill(members, name="c")
        await until(lambda: wrong.node.replicas.differs)
        await until(lambda: wrong.node.replicas.difference.is_exact)  # type: ignore[union-attr]
        assert wrong.node.replicas.difference.index == flipped[0]  # type: ignore[union-attr]
        assert not wrong.node.replicas.difference.records  # type: ignore[union-attr]
        assert not wrong.node._raft.own_copy.votes
        assert await leader_of(right) is not wrong
        await fill(right, name="d")
        for each in right:
            await until(lambda each=each: bool(each.node.replicas.doubts()))  # type: ignore[misc]
            assert [(doubt.node_id, doubt.is_settled) for doubt in each.node.replicas.doubts()] == [
                (wrong.config.node_id, True)
            ]
            assert not each.node.replicas.differs
        assert not any(each.fatal for each in members)
        assert not any(wrong.config.node_id in leader_each.node.answering_voters() for leader_each in right)


async def test_two_that_differ_both_say_so_and_neither_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(2, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        wrong = next(each for each in members if each is not leader)
        flip_in_apply(wrong, monkeypatch)
        await fill(members)
        await until(lambda: all(each.node.replicas.doubts() for each in members))
        for each in members:
            assert not each.node.replicas.differs
            assert not each.node.replicas.doubts()[0].is_settled
        await fill(members, name="later")


async def test_what_changes_in_memory_before_it_is_appended_is_cut_and_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        wrong = next(each for each in members if each is not leader)
        append = wrong.log.append
        changed: list[int] = []

        def broken(index: int, term: int, kind: int, payload: bytes) -> int:
            if not changed and payload:
                changed.append(index)
                payload = payload[:-1] + bytes([payload[-1] ^ 4])
            return append(index, term, kind, payload)

        monkeypatch.setattr(wrong.log, "append", broken)
        await fill(members)
        await until(lambda: same_state(members))
        assert changed
        assert caplog.text.count("the memory of this node has changed it") == 1
        assert wrong.log.entry(changed[0]).payload == leader.log.entry(changed[0]).payload
        assert wrong.log.chain.last == leader.log.chain.last
        assert not any(each.node.replicas.differs or each.fatal for each in members)


async def test_so_is_what_takes_the_place_of_an_entry_that_nobody_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier entry with this index was cut off: it says nothing of the one that came after it."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        wrong = next(each for each in members if each is not leader)
        await wrong.stop()
        append, index, changed = CommitLog.append, wrong.log.last_index + 1, list[int]()
        log = CommitLog.open(wrong.disk, str(wrong.directory / "log"), segment_bytes=1 << 20, cache_bytes=0)
        for at in range(index, index + 40):
            log.append(at, leader.node.term, KIND_NOOP, b"")
        log.close()
        await leader.stop()
        rest = [each for each in members if each not in (leader, wrong)]
        await leader.start()
        await fill([*rest, leader])

        def broken(self: CommitLog, at: int, term: int, kind: int, payload: bytes) -> int:
            if self is wrong.log and not changed and payload:
                changed.append(at)
                payload = payload[:-1] + bytes([payload[-1] ^ 4])
            return append(self, at, term, kind, payload)

        monkeypatch.setattr(CommitLog, "append", broken)
        await wrong.start()
        await until(lambda: same_state(members))
        assert changed
        assert changed[0] < index + 40
        assert caplog.text.count("the memory of this node has changed it") == 1
        assert not any(each.node.replicas.differs or each.fatal for each in members)


async def test_a_leader_whose_memory_changes_an_entry_stops_before_it_passes_it_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        entries = leader.log.entries

        def broken(first: int, max_bytes: int, last: int | None = None) -> list[Entry]:
            found = entries(first, max_bytes, last)
            return [each._replace(payload=each.payload[:-1] + b"\x99") if each.payload else each for each in found]

        monkeypatch.setattr(leader.log, "entries", broken)
        pending = asyncio.ensure_future(leader.node.propose(message("b1")))
        await until(lambda: bool(leader.fatal))
        pending.cancel()
        assert "its memory has changed them" in leader.fatal[0]
        rest = [each for each in members if each is not leader]
        await leader.stop()
        await fill(rest)
        await until(lambda: same_state(rest))


async def test_an_entry_with_the_same_index_and_term_and_other_bytes_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node still knows the difference after a restart."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await fill(members)
        await until(lambda: same_state(members))
        wrong = next(each for each in members if each is not leader)
        await wrong.stop()
        index = wrong.log.last_index - 7
        (segment,) = (wrong.directory / "log").glob("*.log")
        rewrite_record(segment, index)
        await wrong.start()
        await until(lambda: wrong.node.replicas.differs)
        await until(lambda: wrong.node.replicas.difference.is_exact)  # type: ignore[union-attr]
        assert (wrong.node.replicas.difference.index, wrong.node.replicas.difference.records) == (index, True)  # type: ignore[union-attr]
        await fill([each for each in members if each is not wrong], name="on")
        await wrong.stop()
        await wrong.start()
        assert wrong.node.replicas.differs
        assert wrong.node.replicas.difference.index == index  # type: ignore[union-attr]
        assert not wrong.node._raft.own_copy.votes


async def test_without_the_comparison_nobody_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards are undone: entries flipped by these tests are acknowledged, committed and served."""
    monkeypatch.setattr(chain_check, "differs", lambda log, append, match: False)
    monkeypatch.setattr(Replicas, "hear", lambda replicas, peer, said: None)
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await until(lambda: same_state(members))
        wrong = next(each for each in members if each is not leader)
        append, index = wrong.log.append, wrong.log.last_index + 3

        def broken(at: int, term: int, kind: int, payload: bytes) -> int:
            return append(at, term, kind, payload[:-1] + b"?" if at == index else payload)

        monkeypatch.setattr(wrong.log, "append", broken)
        await fill(members)
        await until(lambda: same_state(members))
        assert wrong.log.entry(index).payload != leader.log.entry(index).payload
        assert wrong.log.synced_index == leader.log.synced_index
        assert not any(each.node.replicas.differs or each.node.replicas.doubts() for each in members)


async def test_logs_of_an_earlier_build_get_a_chain_from_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chains begin behind entries that have none, at the same place on all nodes."""
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await fill(members)
        await until(lambda: same_state(members))

        def unchained() -> bool:
            """Begin every chain anew; messages that were under way may bring the former one once more."""
            chained = [member.log.chain for member in members if member.log.chain.last is not None]
            for chain in chained:
                active = chain._segments.active.index
                assert active is not None
                active.chain.begin(None, active.next_index)
            return not chained

        await until(unchained)
        await leader.stop()
        rest = [each for each in members if each is not leader]
        await fill(rest, name="c")
        await until(lambda: same_state(rest))
        await until(lambda: len({member.log.chain.last for member in rest}) == 1)
        link = rest[0].log.chain.last
        assert link is not None
        assert link.origin_index > MESSAGES
        await leader.start()  # what it has on disk is a chain from the first record on, should it lead again
        await until(lambda: same_state(members))
        assert not any(each.node.replicas.differs or each.node.replicas.doubts() or each.fatal for each in members)
        await fill(members, name="d")
        await until(lambda: len({member.log.chain.last for member in members}) == 1)


async def test_a_peer_that_was_removed_is_no_reason_for_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(3, tmp_path) as members:
        leader = await leader_of(members)
        await put_topic(leader)
        await fill(members)
        wrong = next(each for each in members if each is not leader)
        flip_in_apply(wrong, monkeypatch)
        await fill(members, name="c")
        await until(lambda: bool(leader.node.replicas.doubts()))
        node_id = wrong.config.node_id
        await leader.node.propose_configuration(lambda configuration: configuration.without(node_id))
        await until(lambda: not leader.node.replicas.doubts())
