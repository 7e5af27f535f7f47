"""The verdict after the last heal: waits until everything is at rest, then reads all data and lets the checkers judge
it.
"""

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp

from cluster.process.exit_codes import ExitCode
from keelmq.blocks.batch import decode_block
from keelmq.wire import MSGPACK, PullResponse, decode
from tests.chaos.checkers.attempts import Attempts
from tests.chaos.checkers.audit import judge_audit
from tests.chaos.checkers.dead_letters import judge_returns
from tests.chaos.checkers.delivered_once import DeliveredOnce
from tests.chaos.checkers.durable_log import DurableLog, compare_logs
from tests.chaos.checkers.group_offsets import GroupOffsets
from tests.chaos.checkers.group_owners import GroupOwners
from tests.chaos.checkers.inbox import judge_effects
from tests.chaos.checkers.node_logs import leaders_in, traces_in
from tests.chaos.checkers.node_offsets import committed_in
from tests.chaos.checkers.pops import judge_pops
from tests.chaos.checkers.transactions import committed_by, judge_transactions, unresolved
from tests.chaos.cluster import ChaosCluster
from tests.chaos.group_member import effects_by_number
from tests.chaos.group_records import AnyRecord, Begun, Ended, read_records
from tests.chaos.message import number_in
from tests.chaos.observer import Observer
from tests.chaos.progress import GroupProgress
from tests.chaos.violations import Kind
from tests.chaos.workloads.consume import GROUP
from tests.chaos.workloads.operators import Step
from tests.chaos.workloads.pops import POPS_GROUP, POPS_RETRY_TOPIC, POPS_TOPIC, Pops
from tests.chaos.workloads.recorded import RECORDED_GROUP, RECORDED_RETRY_TOPIC, RECORDED_TOPICS, RecordedGroup
from tests.chaos.workloads.returns import MAX_ATTEMPTS, RETRY_TOPIC, RETURNS_GROUP, RETURNS_TOPICS
from tests.chaos.workloads.transactions import Database
from tests.chaos.workloads.worker import DELAYED_TOPIC, TOPICS, Field
from tests.patience import PATIENCE_S

RESOLVE_TIMEOUT_S: Final = PATIENCE_S
"""Longer than the largest clock jump, for which the broker's clock, and with it its checks, may stand still."""
DRAIN_TIMEOUT_S: Final = PATIENCE_S
QUIET_TIMEOUT_S: Final = PATIENCE_S
POLL_S: Final = 0.1
CALL_TIMEOUT_S: Final = PATIENCE_S
PULL_BYTES: Final = 4 << 20
PAGE: Final = 1_000
DEAD_LETTERS_PAGE: Final = 100
# Traces that come with a disk that was made to fail.
EXPLAINED_BY_DISK: Final = ("No space left on device", "Input/output error", "IO error", "DiskError", "DiskFull")

T = TypeVar("T")


class Verdict:
    """Runs the steps of the verdict in their order; each adds to the violations of `field`."""

    def __init__(self, field: Field, cluster: ChaosCluster, observer: Observer, databases: Sequence[Database]) -> None:
        self._field = field
        self._cluster = cluster
        self._observer = observer
        self._databases = databases
        self.transactions: dict[str, str] = {}
        """State of each transaction, by its id."""
        self.dead_letters = 0
        self.offsets = GroupOffsets(RECORDED_GROUP, field.violations)

    async def resolve(self) -> None:
        """Wait until the broker has asked for every transaction that somebody can answer for."""
        until_s = time.monotonic() + RESOLVE_TIMEOUT_S
        while True:
            self.transactions = await self._transaction_states()
            if not any(unresolved(database, self.transactions) for database in self._databases):
                return
            if time.monotonic() > until_s:
                return  # judge_transactions names the open ones
            await asyncio.sleep(POLL_S)

    async def timers_fired(self) -> None:
        """Wait until no message waits for its time any more, neither a delayed one nor one that was given back."""
        until_s = time.monotonic() + RESOLVE_TIMEOUT_S
        for topic in (DELAYED_TOPIC, quote(RETRY_TOPIC), quote(POPS_RETRY_TOPIC), quote(RECORDED_RETRY_TOPIC)):
            while await self._from_leader(f"/v1/topics/{topic}/scheduled?limit=1", lambda answer: answer["messages"]):
                if time.monotonic() > until_s:
                    self._field.violations.add(Kind.NO_PROGRESS, f"messages of {topic} still wait for their time")
                    return
                await asyncio.sleep(POLL_S)

    async def drain_returns(self, group: str = RETURNS_GROUP) -> None:
        """Wait until a group that gives back has committed the end of all its queues, and no message is on its way to
        it.

        A message that was given back waits for its time, or has come to the end of a queue. If neither timers nor ends
        change, none is on its way.
        """
        until_s = time.monotonic() + DRAIN_TIMEOUT_S
        while True:
            before = await self._ends_of(group)
            await self.timers_fired()
            if before is not None and before == await self._ends_of(group):
                return
            if time.monotonic() > until_s:
                self._field.violations.add(Kind.NOT_DRAINED, f"group {group} does not reach its queues' ends")
                return
            await asyncio.sleep(POLL_S)

    async def drain_pops(self) -> None:
        """Wait until every message is acknowledged: one that is held, or waits to come again, is lag or a timer."""
        until_s = time.monotonic() + DRAIN_TIMEOUT_S
        while True:
            before = await self._ends_of(POPS_GROUP)
            await self.timers_fired()
            if before is not None and before == await self._ends_of(POPS_GROUP):
                return
            if time.monotonic() > until_s:
                self._field.violations.add(Kind.NOT_DRAINED, f"group {POPS_GROUP} does not acknowledge everything")
                return
            await asyncio.sleep(POLL_S)

    def judge_pops(self, pops: Pops) -> None:
        """Judge that every message of the topic is acknowledged; call it after the queues were read."""
        judge_pops(self._field.reads.numbers(POPS_TOPIC), pops.acked_s, pops.unknown, self._field.violations)

    async def _ends_of(self, group: str) -> list[int] | None:
        """Return the ends of the group's queues; None while it lags behind one."""
        path = f"/v1/groups/{group}/offsets"
        offsets: list[dict[str, Any]] | None = await self._from_leader(path, lambda answer: answer["offsets"])
        if not offsets or any(each["lag"] for each in offsets):
            return None
        return [each["max_offset"] for each in offsets]

    async def judge_returns(self, processed: Mapping[int, int]) -> None:
        """Judge that every message of the group's topics is processed or a dead letter; call it after the queues were
        read.
        """
        delivered = set().union(*(self._field.reads.numbers(topic) for topic in RETURNS_TOPICS))
        dead = await self._dead_letters(RETURNS_GROUP)
        self.dead_letters = len(dead)
        judge_returns(delivered, processed, dead, self._field.violations)

    async def judge_recorded(self, group: RecordedGroup, note: Callable[[str], None]) -> None:
        """Judge the records of the group's members, its dead letters, and the database of the effects; call it after
        the queues were read. The group's data on each node is judged with the logs.
        """
        note(f"reading what {group.lives} members have written down")
        violations, records = self._field.violations, await asyncio.to_thread(read_records, group.records)
        self.offsets.judge(records)
        attempts, dead = self._judge_records(records), await self._dead_letters(RECORDED_GROUP)
        attempts.judge_dead(dead)
        numbers = {(each.member, each.call): each.number for each in records if isinstance(each, Begun)}
        done = [each for each in records if isinstance(each, Ended) and each.done]
        processed = Counter(numbers[each.member, each.call] for each in done)
        delivered = set().union(*(self._field.reads.numbers(topic) for topic in RECORDED_TOPICS))
        judge_returns(delivered, processed, dead, violations)
        judge_effects(delivered, effects_by_number(group.database), violations)

    async def judge_records_so_far(self, group: RecordedGroup) -> None:
        """Judge the members' records so far: with a defect, the group may never come to its end."""
        records = await asyncio.to_thread(read_records, group.records)
        GroupOffsets(RECORDED_GROUP, self._field.violations).judge(records)
        self._judge_records(records)

    def _judge_records(self, records: Sequence[AnyRecord]) -> Attempts:
        GroupOwners(RECORDED_GROUP, self._field.violations).judge(records)
        attempts = Attempts(RECORDED_GROUP, MAX_ATTEMPTS, self._field.violations)
        attempts.judge(records)
        return attempts

    async def _dead_letters(self, group: str) -> list[int]:
        """Return the numbers of the group's dead letters, each as often as it is there."""
        dead: list[int] = []
        offset = end = 0
        while offset <= end:
            path = f"/v1/groups/{group}/dead-letters?offset={offset}&limit={DEAD_LETTERS_PAGE}"
            page = await self._from_leader(path, lambda answer: answer)
            if page is None:
                break
            dead += [number for each in page["messages"] if (number := number_in(_body(each))) is not None]
            if page["next_offset"] == offset:
                break
            offset, end = page["next_offset"], page["max_offset"]
        return dead

    async def drain(self, progress: GroupProgress) -> None:
        """Wait until the group has processed and committed the end of every queue."""
        until_s = time.monotonic() + DRAIN_TIMEOUT_S
        while True:
            ends = await self._ends()
            await self.report_commits(progress)
            late = {place: end for place, end in ends.items() if not progress.drained(place, end)}
            if ends and not late:
                return
            if time.monotonic() > until_s:
                for place, end in late.items():
                    prefix, committed = progress.position(place)
                    detail = f"{place[0]}/{place[1]} ends at {end}, processed to {prefix}, committed to {committed}"
                    self._field.violations.add(Kind.NOT_DRAINED, detail)
                return
            await asyncio.sleep(POLL_S)

    async def report_commits(self, progress: GroupProgress, node_id: int | None = None) -> None:
        """Ask a node (by default the leader, or the first that answers) for the group's offsets, and judge them."""
        for each in [node_id] if node_id is not None else self._by_preference():
            answer = await self._cluster.ask(each, f"/v1/groups/{GROUP}/offsets")
            if answer is not None:
                for offset in answer["offsets"]:
                    progress.committed((offset["topic"], offset["queue"]), offset["offset"])
                return

    async def come_to_rest(self) -> int:
        """Wait until all nodes have applied the same entries with equal hashes; return the last index."""
        until_s = time.monotonic() + QUIET_TIMEOUT_S
        while True:
            answers = await asyncio.gather(*(self._observer.poll(node_id) for node_id in self._cluster.nodes))
            seen = {(a["applied_index"], a["commit_index"], a["hash_index"]) if a else None for a in answers}
            if len(seen) == 1 and None not in seen:
                (applied, commit, hashed) = next(each for each in seen if each is not None)
                if applied == commit == hashed:
                    return int(applied)
            if time.monotonic() > until_s:
                self._field.violations.add(Kind.NO_PROGRESS, f"the nodes do not come to the same state: {answers}")
                return min(int(answer["applied_index"]) for answer in answers if answer) if any(answers) else 0
            await asyncio.sleep(POLL_S)

    async def judge_queues(self, note: Callable[[str], None]) -> None:
        """Judge every queue of every node, from its first message to its last."""
        committed = {each.worker: committed_by(each, self.transactions) for each in self._databases}
        for database in self._databases:
            judge_transactions(database, self.transactions, self._field.violations)
        for node_id, node in self._cluster.nodes.items():
            note(f"reading every queue of node {node_id}")
            checker = DeliveredOnce(f"node {node_id}", self._field.book, committed, self._field.violations)
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)) as session:
                for topic, queues in TOPICS.items():
                    for queue in range(queues):
                        await self._read_queue(session, node.url, topic, queue, checker)
            checker.finish()

    async def judge_logs(self, last_index: int, note: Callable[[str], None]) -> None:
        """Stop the nodes in order, and judge their disks and the logs that they printed."""
        note("stopping the nodes")
        codes = await asyncio.gather(*(self._cluster.stop(node_id) for node_id in self._cluster.nodes))
        for node_id, code in zip(self._cluster.nodes, codes, strict=True):
            if code != ExitCode.STOPPED:
                self._field.violations.add(Kind.UNEXPECTED_EXIT, f"node {node_id} was stopped and ended with {code}")
        contents = []
        for node_id, node in self._cluster.nodes.items():
            note(f"reading the commit log of node {node_id}")
            log = DurableLog(
                f"node {node_id}", node.data_dir / "log", last_index, self._field.book, self._field.violations
            )
            contents.append(await asyncio.to_thread(log.check))
            committed = await asyncio.to_thread(committed_in, node.data_dir, RECORDED_GROUP, last_index)
            if committed is not None:
                self.offsets.judge_node(f"node {node_id}", committed)
            leaders_in(node_id, node.log_path, self._observer.leaders, self._field.violations)
            traces_in(node_id, node.log_path, EXPLAINED_BY_DISK, self._field.violations)
        for node_id, log_path in self._cluster.retired.items():
            leaders_in(node_id, log_path, self._observer.leaders, self._field.violations)
            traces_in(node_id, log_path, EXPLAINED_BY_DISK, self._field.violations)
        compare_logs(contents, self._field.violations)

    async def _read_queue(
        self, session: aiohttp.ClientSession, url: str, topic: str, queue: int, checker: DeliveredOnce
    ) -> None:
        offset, place = 0, (topic, queue)
        headers = {"Accept": MSGPACK}
        while True:
            path = (
                f"/v1/topics/{topic}/queues/{queue}/messages?offset={offset}&max_messages=10000&max_bytes={PULL_BYTES}"
            )
            async with session.get(url + path, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    text = (await response.text())[:300]
                    self._field.violations.add(Kind.LOST, f"{url}{path}: HTTP {response.status} {text}")
                    return
                pulled = decode(PullResponse, await response.read(), MSGPACK)
            for batch in pulled.batches:
                at = batch.base_offset
                left_out = frozenset(batch.skip)
                for ordinal, message in enumerate(decode_block(batch.block, batch.crc32c, batch.uncompressed_bytes)):
                    if ordinal not in left_out:
                        self._field.reads.read(place, at, message.body, url)
                        checker.message(place, at, message.body, batch.stored_at_ms)
                        at += 1
            if pulled.next_offset >= pulled.max_offset:
                return
            if pulled.next_offset <= offset:
                self._field.violations.add(Kind.GAP, f"{url}: {topic}/{queue} cannot be read beyond {offset}")
                return
            offset = pulled.next_offset

    async def _ends(self) -> dict[tuple[str, int], int]:
        """Return the end of every queue, from the leader; empty when no node answers."""
        for node_id in self._by_preference():
            answer = await self._cluster.ask(node_id, "/v1/topics", CALL_TIMEOUT_S)
            if answer is not None:
                return {
                    (topic["topic"], queue["queue"]): queue["max_offset"]
                    for topic in answer["topics"]
                    if topic["topic"] in TOPICS
                    for queue in topic["queue_offsets"]
                }
        return {}

    async def judge_audit(self, steps: Sequence[Step]) -> None:
        """Judge the timeline of every transaction that an operator stepped into."""
        timelines: dict[str, list[dict[str, Any]]] = {}
        for transaction_id in dict.fromkeys(step.transaction_id for step in steps):
            path = f"/v1/transactions/{transaction_id}"
            timeline = await self._from_leader(path, lambda answer: answer["timeline"])
            if timeline is not None:
                timelines[transaction_id] = timeline
        judge_audit(steps, timelines, self._field.violations)

    async def _from_leader(self, path: str, take: Callable[[Any], T]) -> T | None:
        """Take an answer from the leader, or the first node that answers; None when none does."""
        for node_id in self._by_preference():
            answer = await self._cluster.ask(node_id, path, CALL_TIMEOUT_S)
            if answer is not None:
                return take(answer)
        return None

    async def _transaction_states(self) -> dict[str, str]:
        """Return the states of all transactions, page by page, from the leader."""
        states: dict[str, str] = {}
        for node_id in self._by_preference():
            after = ""
            while True:
                path = f"/v1/transactions?limit={PAGE}{f'&after={after}' if after else ''}"
                answer: Any = await self._cluster.ask(node_id, path, CALL_TIMEOUT_S)
                if answer is None:
                    states.clear()
                    break
                states.update((each["transaction_id"], each["state"]) for each in answer["transactions"])
                after = answer["next"]
                if not after:
                    return states
        return states

    def _by_preference(self) -> list[int]:
        """Return all nodes, the leader first."""
        leader = self._cluster.leader_id
        return sorted(self._cluster.nodes, key=lambda node_id: node_id != leader)


def _body(message: dict[str, Any]) -> bytes:
    body: str = message["body"]
    return base64.b64decode(body) if message["encoding"] == "base64" else body.encode()
