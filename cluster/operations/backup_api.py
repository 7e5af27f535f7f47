"""Backups of the whole cluster, taken from one node while it serves: /v1/backups."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.budgets.connections import address_of_request
from cluster.core.between_entries import between_entries
from cluster.core.core import Core
from cluster.health.last_backup import LastBackup
from cluster.http.app import json_response
from cluster.http.requests import Natural, Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import OCTET_STREAM, Route, json_of
from cluster.metrics import gauge
from cluster.operations.backup_stream import BackupStream
from cluster.problems import Problem
from cluster.security.access import ADMINISTRATION

logger = logging.getLogger(__name__)

BACKUPS_MAX: Final = 2
"""Maximum number of backups under way on a node. Each keeps part of the log, and the index' files as they were."""
IDLE_S_MAX: Final = 60.0
"""Seconds without a request after which a backup is given up, so that nobody who is gone keeps the log."""


class FrameQuery(Request, kw_only=True, frozen=True):
    frame: Annotated[Natural, Meta(description="Number of the frame: the next one, or the last one once more.")]


class EndQuery(Request, kw_only=True, frozen=True):
    """The end of a backup. `stored` says that the whole backup is durable at the client; the metrics then count it."""

    stored: bool = False


class BackupView(Response, kw_only=True, frozen=True):
    """A backup that has begun: the state after the entry `index`, and the log from `first_index` up to it. It is given
    up after `idle_ms_max` without a request. `leader_id` is the leader that the node knows; without one it may lack
    what others have.
    """

    backup_id: str
    node_id: int
    leader_id: int | None
    cluster_id: str
    cluster_uid: str
    index: int
    term: int
    state_hash: str
    first_index: int
    log_bytes: int
    created_ms: int
    idle_ms_max: int
    feature_level: int


class BackupApi:
    """Handles /v1/backups, and owns the backups under way. Use on the event loop only. Nothing of them is durable but
    when the last one was stored: a node that starts again knows none of them, and the client begins anew.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._streams: dict[str, BackupStream] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._last = LastBackup(core)
        self._stored = self._given_up = 0
        core.metrics.add_gauges(self._gauges)

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/backups",
                self.begin,
                "Begin a backup of the state and the log as this node has applied them",
                {201: json_of(BackupView)},
                errors=("overloaded", "no_leader", "not_ready"),
                redirects=True,
                access=ADMINISTRATION,
            ),
            Route(
                "GET",
                "/v1/backups/{backup_id}",
                self.frame,
                "Read one frame of the backup's file, one after the other",
                {200: {OCTET_STREAM: None}},
                query=FrameQuery,
                errors=("backup_not_found", "log_range_removed", "overloaded"),
                access=ADMINISTRATION,
            ),
            Route(
                "DELETE",
                "/v1/backups/{backup_id}",
                self.end,
                "End a backup: the node keeps nothing for it any more",
                {204: {}},
                query=EndQuery,
                errors=("backup_not_found",),
                access=ADMINISTRATION,
            ),
        ]

    async def begin(self, request: web.Request) -> web.Response:
        core = self._core
        # What is said of the state beside the index has to be of the same entry.
        if not await between_entries(core):
            raise Problem("overloaded", "an entry of the log takes too long to be applied; begin the backup again")
        core.require_bodies()
        core.require_replica()
        if not core.state.cluster_uid:
            raise Problem(
                "not_ready", "this node has applied nothing of a cluster yet; ask another node, or again later"
            )
        if len(self._streams) >= BACKUPS_MAX:
            raise Problem(
                "overloaded",
                f"{BACKUPS_MAX} backups are under way on this node; wait until one is done, or gives up after "
                f"{IDLE_S_MAX:.0f} s without a request",
            )
        stream = BackupStream(core)
        backup_id = core.new_id()
        core.log_pins.pin(backup_id, stream.first_index, core.now_ms())
        self._streams[backup_id] = stream
        self._touch(backup_id)
        begin = stream.begin
        logger.info("backup %s of the state after entry %d begins", backup_id, begin.index)
        view = BackupView(
            backup_id=backup_id,
            first_index=stream.first_index,
            idle_ms_max=int(IDLE_S_MAX * 1000),
            node_id=begin.node_id,
            leader_id=core.raft.leader_id,
            cluster_id=begin.cluster_id,
            cluster_uid=begin.cluster_uid,
            index=begin.index,
            term=begin.term,
            state_hash=begin.state_hash,
            log_bytes=begin.log_bytes,
            created_ms=begin.created_ms,
            feature_level=begin.feature_level,
        )
        return json_response(view, 201)

    async def frame(self, request: web.Request) -> web.Response:
        core = self._core
        query = parse_query(FrameQuery, request.query)
        backup_id, stream = self._found(request)
        core.response_budget.require_room()
        try:
            async with core.turn(core.log_page_turns, address_of_request(request), 1 << 20):
                frame = await stream.frame(query.frame)
        finally:
            if backup_id in self._streams:
                self._touch(backup_id)
        return web.Response(body=frame, headers={"Content-Type": OCTET_STREAM})

    async def end(self, request: web.Request) -> web.Response:
        query = parse_query(EndQuery, request.query)
        backup_id, stream = self._found(request)
        if query.stored and not stream.is_whole:
            raise Problem("invalid_request", "the end of the backup was not read yet; read on to it first")
        self._drop(backup_id)
        if query.stored:
            self._stored += 1
            await self._last.note(stream.begin.index, stream.size_bytes)
        else:
            self._given_up += 1
        logger.info(
            "backup %s ends, %d bytes, %s", backup_id, stream.size_bytes, "stored" if query.stored else "given up"
        )
        return web.Response(status=204)

    def _found(self, request: web.Request) -> tuple[str, BackupStream]:
        backup_id = request.match_info["backup_id"]
        stream = self._streams.get(backup_id)
        if stream is None:
            raise Problem("backup_not_found", "no such backup is under way on this node; begin another one")
        return backup_id, stream

    def _touch(self, backup_id: str) -> None:
        timer = self._timers.pop(backup_id, None)
        if timer is not None:
            timer.cancel()
        self._timers[backup_id] = asyncio.get_running_loop().call_later(IDLE_S_MAX, self._give_up, backup_id)

    def _give_up(self, backup_id: str) -> None:
        self._drop(backup_id)
        self._given_up += 1
        logger.warning("backup %s is given up: nobody has asked for %d s", backup_id, IDLE_S_MAX)

    def _drop(self, backup_id: str) -> None:
        self._core.log_pins.unpin(backup_id)
        del self._streams[backup_id]
        self._timers.pop(backup_id).cancel()

    def stop(self) -> None:
        """Give all backups up: the node stops."""
        self._last.stop()
        for backup_id in list(self._streams):
            self._drop(backup_id)

    def _gauges(self) -> Iterator[Metric]:
        yield gauge("keelmq_backups_under_way", "Backups that are being read from this node", len(self._streams))
        for name, description, value in (
            ("keelmq_backups_stored", "Backups of which the client said that it has stored them", self._stored),
            ("keelmq_backups_given_up", "Backups that ended before they were stored", self._given_up),
        ):
            counter = CounterMetricFamily(name, description)
            counter.add_metric([], value)
            yield counter
        yield from self._last.gauges()
