"""Takes a node out of leading until it is put back, or started again (docs/decisions.md, 84)."""

import logging
from collections.abc import Iterator

import msgspec
from aiohttp import web
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.health.alarms import Alarms, Condition
from cluster.http.app import json_response, read_json
from cluster.http.requests import Request
from cluster.http.responses import Response
from cluster.http.routes import JSON, Route, json_of
from cluster.metrics import gauge
from cluster.security.access import ADMINISTRATION, CLUSTER_DESCRIBED

logger = logging.getLogger(__name__)


class DrainRequest(Request, kw_only=True, frozen=True):
    """Request for other nodes to lead in place of the one that is asked, or for the end of that."""

    drained: bool


class DrainView(Response, kw_only=True, frozen=True):
    """State of a drain: whether the node is drained, and whether it leads all the same, since no other voter that
    answers could take over.
    """

    node_id: int
    drained: bool
    leads: bool


_decoder = msgspec.json.Decoder(DrainRequest)


class DrainApi:
    """Handles /v1/cluster/drain, for the node that is asked."""

    def __init__(self, core: Core, alarms: Alarms) -> None:
        self._core = core
        core.metrics.add_gauges(self._gauges)
        alarms.add(self._conditions)

    def routes(self) -> list[Route]:
        path = "/v1/cluster/drain"
        return [
            Route(
                "GET",
                path,
                self.show,
                "Show whether this node is drained",
                {200: json_of(DrainView)},
                CLUSTER_DESCRIBED,
            ),
            Route(
                "PUT",
                path,
                self.change,
                "Have other nodes lead in place of this one until it is put back or started again; a leader hands over",
                {200: json_of(DrainView)},
                body={JSON: DrainRequest},
                access=ADMINISTRATION,
            ),
        ]

    async def show(self, _: web.Request) -> web.Response:
        return json_response(self._view())

    async def change(self, request: web.Request) -> web.Response:
        raft = self._core.raft
        drained = (await read_json(request, self._core, _decoder)).drained
        if drained != self._is_drained:
            raft.vital_signs.drain(drained=drained)
            logger.warning("this node is %s", "drained: others lead while one can" if drained else "drained no more")
        if drained and raft.leadership.successor() is not None:
            await raft.hand_over()
        return json_response(self._view())

    @property
    def _is_drained(self) -> bool:
        return self._core.raft.vital_signs.is_drained(self._core.raft.node_id)

    def _view(self) -> DrainView:
        raft = self._core.raft
        return DrainView(node_id=raft.node_id, drained=self._is_drained, leads=raft.role == "leader")

    def _conditions(self) -> Iterator[Condition]:
        if self._is_drained:
            node_id = self._core.raft.node_id
            yield Condition(
                "node_drained",
                "warning",
                f"an operator has drained this node: it leads only while no other voter can. Next: keelmq node undrain "
                f"{node_id}; a start of the node ends it, too",
            )

    def _gauges(self) -> Iterator[Metric]:
        yield gauge("keelmq_node_drained", "1 while an operator wants other nodes to lead", int(self._is_drained))
