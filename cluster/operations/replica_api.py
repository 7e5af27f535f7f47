"""Replicas that differ: raises alarms, shows the comparison in `/v1/cluster`, and rebuilds this node on request."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.http.app import json_response
from cluster.http.requests import Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import Route, json_of
from cluster.problems import Problem
from cluster.security.access import ADMINISTRATION
from raft.config import NODE_ID_MAX
from raft.copies.replicas import FRESH_INTERVALS
from raft.errors import MembershipRefused
from raft.library import now


class RebuildQuery(Request, kw_only=True, frozen=True):
    """Rebuilds the node. `node_id` is the expected node; another node refuses the request. With `force` the node is
    rebuilt even if the other nodes with all committed entries are no majority.
    """

    node_id: Annotated[int, Meta(ge=1, le=NODE_ID_MAX)] | None = None
    force: bool = False


logger = logging.getLogger(__name__)

SETTLING_INTERVALS: Final = 1.5
"""Number of intervals between two vital signs after which the others have heard that a node gives its copy up."""

NEXT_STEP: Final = "keelmq cluster rebuild {node}"


class ComparedView(Response, kw_only=True, frozen=True):
    """The comparison with another node at the entry `raft_index`, the last one compared. `agrees` is true when both
    states were equal there."""

    node_id: int
    raft_index: int
    agrees: bool


class ReplicaView(Response, kw_only=True, frozen=True):
    """The comparison of this node with the others. `differs` is true when this node differs from a majority, from the
    entry `first_index` on. If `exact` is false, earlier entries may differ as well.
    """

    differs: bool
    first_index: int | None
    exact: bool
    compared: list[ComparedView]


class RebuildView(Response, kw_only=True, frozen=True):
    """The durable decision to rebuild: the node starts again with an empty disk, and the leader fills it."""

    node_id: int
    filled_by: list[int]


def replica_view(core: Core) -> ReplicaView:
    replicas = core.raft.replicas
    difference = replicas.difference
    compared = [
        ComparedView(node_id=node_id, raft_index=index, agrees=True)
        for node_id, index in replicas.agreed_with().items()
        if node_id not in replicas.against
    ]
    compared += [
        ComparedView(node_id=node_id, raft_index=difference.index, agrees=False)
        for node_id in replicas.against
        if difference is not None
    ]
    doubts = replicas.doubts()
    doubted = {doubt.node_id for doubt in doubts}
    compared = [each for each in compared if each.node_id not in doubted]
    compared += [
        ComparedView(node_id=doubt.node_id, raft_index=doubt.difference.index, agrees=False) for doubt in doubts
    ]
    return ReplicaView(
        differs=replicas.differs,
        first_index=None if difference is None else difference.index,
        exact=difference is not None and difference.is_exact,
        compared=sorted(compared, key=lambda each: each.node_id),
    )


class ReplicaApi:
    """Handles /v1/cluster/rebuild, and raises the alarms about replicas. `rebuild(joins)` makes the decision durable
    and starts the node again.
    """

    def __init__(self, core: Core, rebuild: Callable[[bool], None]) -> None:
        self._core = core
        self._rebuild = rebuild

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/cluster/rebuild",
                self.rebuild,
                "Discard this node's copy of the data durably, and let the others fill the node anew",
                {200: json_of(RebuildView)},
                query=RebuildQuery,
                errors=("quorum_at_risk", "change_in_progress", "no_leader"),
                access=ADMINISTRATION,
            )
        ]

    async def rebuild(self, request: web.Request) -> web.Response:
        raft = self._core.raft
        query = parse_query(RebuildQuery, request.query)
        if query.node_id is not None and query.node_id != raft.node_id:
            raise Problem("invalid_request", f"this is node {raft.node_id}, not {query.node_id}; ask that one")
        self._require_holders(force=query.force)
        raft.replicas.is_leaving = True
        try:
            if not await raft.hand_over():
                raise Problem("no_leader", "no other voter could take the leadership over in time; try again")
            holders = self._require_holders(await self._hear_the_others(), force=query.force)
            if raft.leader_id in (None, raft.node_id) and not query.force:
                raise Problem("no_leader", "this node knows no leader that could fill it; try again")
            logger.warning("an operator asks to rebuild this replica: the node starts again, without its log and index")
            self._rebuild(raft.configuration_index > 0)
        except BaseException:
            raft.replicas.is_leaving = False
            raise
        return json_response(RebuildView(node_id=raft.node_id, filled_by=sorted(holders)))

    async def _hear_the_others(self) -> float:
        """Wait until a majority of holders is heard after they could learn of this rebuild.

        Two nodes must not count on each other's copy while both give theirs up. Returns the time from which on the
        vital signs of another node can be trusted: it was told of this rebuild, and had time to report its own.
        """
        raft = self._core.raft
        interval_s = raft.replicas.interval_s
        since_s = now() + SETTLING_INTERVALS * interval_s
        for _ in range(4 * FRESH_INTERVALS):
            await asyncio.sleep(interval_s / 4)
            if raft.configuration.has_majority(raft.replicas.holders(since_s)):
                break
        return since_s

    def _require_holders(self, since_s: float = float("-inf"), *, force: bool) -> set[int]:
        """Return the other voters that hold all committed entries. Raises MembershipRefused unless they could go on,
        with all committed entries, as if this disk were lost.
        """
        raft = self._core.raft
        if raft.configuration_index > raft.commit_index:
            raise MembershipRefused(
                "change_in_progress", "the last change of the cluster's nodes is not committed yet; try again"
            )
        voters = raft.configuration.voters
        holders = raft.replicas.holders(since_s)
        if not voters - {raft.node_id} or (force and not holders):
            raise MembershipRefused(
                "quorum_at_risk", "this node hears no other node that could fill it; start the others first"
            )
        if not force and not raft.configuration.has_majority(holders):
            raise MembershipRefused(
                "quorum_at_risk",
                f"of the voters {sorted(voters)} only {sorted(holders)} are others that are heard, vote and do not "
                "differ, which is no majority: committed entries might be on this node alone. Start the others first, "
                "or force the rebuild",
            )
        return holders

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for this replica, and for other nodes that differ from it."""
        replicas, node_id = self._core.raft.replicas, self._core.raft.node_id
        if replicas.difference is not None:
            against = ", ".join(map(str, replicas.against)) or "the others"
            yield Condition(
                "replica_differs",
                "critical",
                f"this replica differs from a majority (nodes {against}): {replicas.difference}. It neither votes, "
                "leads, counts nor serves. Keep a copy of its directory if the cause is to be found, then run: "
                + NEXT_STEP.format(node=node_id),
                str(node_id),
            )
        for doubt in replicas.doubts():
            if doubt.is_settled:
                yield Condition(
                    "replica_differs",
                    "critical",
                    f"node {doubt.node_id} differs from this one and the nodes that agree with this one, at entry "
                    f"{doubt.difference.index} or before: {NEXT_STEP.format(node=doubt.node_id)}",
                    str(doubt.node_id),
                )
            else:
                yield Condition(
                    "replica_differs",
                    "critical",
                    f"this node and node {doubt.node_id} differ at entry {doubt.difference.index} or before, and no "
                    "majority says which of them is right. The leader goes on, the other node serves no reads. Start "
                    "the nodes that are down; if there are none, find out which node is right, and rebuild the other: "
                    + NEXT_STEP.format(node="NODE")
                    + " --force",
                    str(doubt.node_id),
                )
