"""Faults by operators, who change the nodes of the cluster under load and among other faults: a voter comes and goes,
one of the first nodes is removed and put back, a node or all of them move to other addresses.

The cluster of the run is whole again after each heal: exactly its first nodes are voters. Meanwhile the voters, and so
the majorities, are others than at the beginning. The other faults still take no majority away: they choose their
minorities among the first nodes, and any majority of three or five stays one when a node comes.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from keelmq.admin import Admin
from keelmq.errors import KeelMQError
from keelmq.transport.connection import Connection
from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.disk import disks_behind
from tests.chaos.nemeses.fault import FaultKind, follower_or_any, joined, leader_or_any
from tests.chaos.node import ChaosNode
from tests.chaos.violations import Kind
from tests.patience import PATIENCE_S

DONE_TIMEOUT_S: Final = PATIENCE_S
AGAIN_S: Final = 0.1
CALL_TIMEOUT_MS: Final = 5_000
WAITED_FOR: Final = frozenset({"change_in_progress", "not_caught_up", "quorum_at_risk", "address_unreachable"})
ORDERLY_SHARE: Final = 0.5

Work = Callable[[Admin], Awaitable[Any]]


class Operator:
    """Repeats each command until it is done, in the background, while other faults hold."""

    def __init__(self, cluster: ChaosCluster, what: str) -> None:
        self._cluster, self._what = cluster, what
        self._connection = Connection(cluster.urls, call_timeout_ms=CALL_TIMEOUT_MS)
        self._admin = Admin(self._connection)
        self._task: asyncio.Task[None] | None = None
        self.done: list[str] = []

    def begin(self, *commands: tuple[str, Work]) -> None:
        self._task = asyncio.create_task(self._carry_out(commands))

    async def finish(self, *commands: tuple[str, Work]) -> None:
        """Finish the begun commands, and then carry out `commands`. It is a violation when that takes too long although
        everything is healed.
        """
        try:
            async with asyncio.timeout(DONE_TIMEOUT_S):
                if self._task is not None:
                    await self._task
                await self._carry_out(commands)
        except TimeoutError:
            self._cluster.violations.add(
                Kind.NO_PROGRESS, f"{self._what}: done is only {self.done} {DONE_TIMEOUT_S:.0f} s after the heal"
            )

    async def give_up(self) -> None:
        """Stop repeating the commands that are begun and not done."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def close(self) -> None:
        self._connection.close()

    async def _carry_out(self, commands: tuple[tuple[str, Work], ...]) -> None:
        for name, work in commands:
            begun_s = time.monotonic()
            await self._persist(work)
            self._cluster.has_changed = True
            self.done.append(f"{name} {time.monotonic() - begun_s:.1f} s")

    async def _persist(self, work: Work) -> None:
        while True:
            try:
                await work(self._admin)
            except KeelMQError as exc:
                if exc.code == "node_not_found":
                    return  # removed by a request whose answer was lost
                if not exc.retryable and exc.code not in WAITED_FOR:
                    raise
            else:
                return
            await asyncio.sleep(AGAIN_S)


def added(node: ChaosNode) -> tuple[str, Work]:
    address = f"{node.host}:{node.peer_port}"
    return "added", lambda admin: admin.add_node(node.node_id, address, node.url)


def promoted(node: ChaosNode) -> tuple[str, Work]:
    return "promoted", lambda admin: admin.promote_node(node.node_id)


def removed(node: ChaosNode) -> tuple[str, Work]:
    return "removed", lambda admin: admin.remove_node(node.node_id)


def moved(node: ChaosNode, *, force: bool) -> tuple[str, Work]:
    address = f"{node.host}:{node.peer_port}"
    return "moved", lambda admin: admin.set_node_address(node.node_id, peer_address=address, force=force)


class AddVoter:
    """A new node with an unused id becomes a learner, then a voter; healed by removing it."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._node: ChaosNode | None = None
        self._operator: Operator | None = None

    async def start(self) -> str:
        if self._cluster.spare is not None:
            return "there is a new node already"
        self._node = node = self._cluster.start_spare()
        self._operator = Operator(self._cluster, f"node {node.node_id} comes and goes")
        self._operator.begin(added(node), promoted(node))
        return f"node {node.node_id} is started empty, to be a voter"

    async def heal(self) -> str:
        node, operator = self._node, self._operator
        if node is None or operator is None:
            return "no node came"
        if operator.done:  # else a late request to add it might follow its removal
            await operator.give_up()
            await operator.finish(removed(node))
        else:
            await operator.finish(removed(node))
        operator.close()
        self._cluster.retire_spare()
        return f"node {node.node_id}: {', '.join(operator.done)}; stopped"


class RemoveVoter:
    """Remove one of the first nodes, which goes on running. Healing makes the node a learner and a voter again."""

    def __init__(self, leads: bool, cluster: ChaosCluster, rng: random.Random) -> None:
        self._leads, self._cluster, self._rng = leads, cluster, rng
        self._node = 0
        self._operator: Operator | None = None

    async def start(self) -> str:
        behind = disks_behind(self._cluster)
        if behind or self._cluster.removed:
            return f"{joined(behind)} has not caught up: nobody is removed" if behind else "one is removed already"
        choose = leader_or_any if self._leads else follower_or_any
        self._node = await choose(self._cluster, self._rng)
        self._cluster.removed.add(self._node)
        self._operator = Operator(self._cluster, f"node {self._node} goes and comes back")
        self._operator.begin(removed(self._cluster.nodes[self._node]))
        return f"node {self._node} is to be removed"

    async def heal(self) -> str:
        if self._operator is None:
            return "nobody was removed"
        node = self._cluster.nodes[self._node]
        self._cluster.start([self._node])
        await self._operator.finish(added(node), promoted(node))
        self._operator.close()
        self._cluster.removed.discard(self._node)
        return f"node {self._node}: {', '.join(self._operator.done)}"


class MoveNode:
    """A node is started at another address: either the node or the log is changed first."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._operator: Operator | None = None
        self._node = 0

    async def start(self) -> str:
        cluster, rng = self._cluster, self._rng
        told_first = rng.random() < ORDERLY_SHARE
        self._node = await follower_or_any(cluster, rng)
        if cluster.removed:
            self._node = 0
            return "a node is removed: none moves"
        node = cluster.nodes[self._node]
        node.kill()
        cluster.move(node)
        cluster.configure(node)
        self._operator = Operator(cluster, f"node {self._node} moves")
        self._operator.begin(moved(node, force=told_first))
        if not told_first:
            node.start()
        return f"node {self._node} moves to {node.host}:{node.peer_port}{', the log first' if told_first else ''}"

    async def heal(self) -> str:
        if self._operator is None:
            return "no node has moved"
        self._cluster.start([self._node])
        await self._operator.finish()
        self._operator.close()
        return f"node {self._node}: {', '.join(self._operator.done)}; started"


class MoveAll:
    """All nodes are stopped and started elsewhere, with an override of their addresses."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._override = 0

    async def start(self) -> str:
        cluster = self._cluster
        if cluster.spare is not None or cluster.removed:
            return "the nodes are being changed: they do not move"
        for node in cluster.nodes.values():
            node.kill()
            cluster.move(node)
        self._override = cluster.next_override()
        for node in cluster.nodes.values():
            cluster.configure(node, override=self._override)
            node.start()
        return f"all nodes have moved, override {self._override}"

    async def heal(self) -> str:
        if not self._override:
            return "no node has moved"
        self._cluster.start()
        begun_s = time.monotonic()
        while not await self._is_in_the_log():
            if time.monotonic() - begun_s > DONE_TIMEOUT_S:
                self._cluster.violations.add(Kind.NO_PROGRESS, f"override {self._override} does not get into the log")
                return "the addresses are not in the log"
            await asyncio.sleep(AGAIN_S)
        self._cluster.has_changed = True
        return f"the new addresses are in the log after {time.monotonic() - begun_s:.1f} s"

    async def _is_in_the_log(self) -> bool:
        """Return whether the leader knows the configuration to be committed."""
        leader = await self._cluster.known_leader()
        view = await self._cluster.ask(leader) if leader is not None else None
        return view is not None and 0 < view["configuration_index"] <= view["commit_index"]


KINDS = (
    FaultKind("add-voter", "membership", AddVoter),
    FaultKind("remove-voter", "membership", partial(RemoveVoter, False)),
    FaultKind("remove-leader", "membership", partial(RemoveVoter, True)),
    FaultKind("move-node", "membership", MoveNode),
    FaultKind("move-all", "membership", MoveAll),
)
