"""Shows the feature levels that each node knows, and raises the level of the cluster (docs/upgrading.md)."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster import COMMIT
from cluster.core.core import Core
from cluster.health.alarms import Alarms, Condition
from cluster.http.app import json_response, read_json
from cluster.http.requests import Request
from cluster.http.responses import Response
from cluster.http.routes import JSON, Route, json_of
from cluster.metrics import gauge
from cluster.security.access import ADMINISTRATION
from raft.errors import MembershipRefused
from raft.membership import Configuration
from store.features import FEATURES, FIRST_LEVEL, LEVEL_MAX


class FeatureLevelRequest(Request, kw_only=True, frozen=True):
    """Raises the feature level to `level`; without it, to the highest level that every node knows."""

    level: Annotated[int, Meta(ge=FIRST_LEVEL, le=LEVEL_MAX)] | None = None


class BuildView(Response, kw_only=True, frozen=True):
    """The version of a node, the commit that it was built from, and the feature levels that it knows; null while it is
    not connected, the commit also of a build that names none.
    """

    node_id: int
    version: str | None
    commit: str | None
    feature_level_min: int | None
    feature_level_max: int | None


class FeatureLevelView(Response, kw_only=True, frozen=True):
    """The feature level in force. `raised` is true when this request has raised it."""

    feature_level: int
    raised: bool
    nodes: list[BuildView]


_decoder: Final = msgspec.json.Decoder(FeatureLevelRequest)


class FeatureApi:
    """Handles /v1/cluster/feature-level."""

    def __init__(self, core: Core, alarms: Alarms) -> None:
        self._core = core
        core.metrics.add_gauges(self._gauges)
        alarms.add(self._conditions)

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/cluster/feature-level",
                self.raise_level,
                "Raise the feature level once every node knows it; it never goes down",
                {200: json_of(FeatureLevelView)},
                body={JSON: FeatureLevelRequest},
                body_optional=True,
                errors=(
                    "no_leader",
                    "unknown_outcome",
                    "disk_full",
                    "change_in_progress",
                    "feature_level_not_known",
                    "feature_level_in_force",
                ),
                redirects=True,
                access=ADMINISTRATION,
            )
        ]

    async def raise_level(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        level = (await read_json(request, core, _decoder)).level if request.can_read_body else None
        levels = core.raft.feature_levels
        following = levels.raised(core.raft.configuration, level)
        if following == core.raft.configuration:
            if core.raft.configuration_index > core.raft.commit_index:
                raise MembershipRefused(
                    "change_in_progress", "the last change of the cluster is not committed yet; try again"
                )
            return self._answer(raised=False)
        before = levels.in_force

        def change(configuration: Configuration) -> Configuration:
            return levels.raised(configuration, level)

        await core.change_members(change, by=request)
        return self._answer(raised=levels.in_force > before)

    def _answer(self, *, raised: bool) -> web.Response:
        raft = self._core.raft
        nodes = [build_view(self._core, member.node_id) for member in raft.configuration.members]
        return json_response(FeatureLevelView(feature_level=raft.feature_levels.in_force, raised=raised, nodes=nodes))

    def _conditions(self) -> Iterator[Condition]:
        """Yield, on the leader, an alarm when every node knows a higher level than the one in force, as a reminder to
        finish an upgrade. A level that is about to be raised counts: a new cluster has nothing to be reminded of.
        """
        raft = self._core.raft
        if not raft.is_leader or raft.feature_levels.may_be_new:
            return
        known, in_force = raft.feature_levels.highest_known(), raft.configuration.feature_level
        if known is not None and known > in_force:
            yield Condition(
                "feature_level_behind",
                "warning",
                f"every node knows feature level {known}, {in_force} is in force: the new features of KeelMQ "
                f"{FEATURES.version_of(known)} are off. Once the version shall stay, 'keelmq cluster upgrade' raises "
                "the level; from then on there is no way back to the version before",
            )

    def _gauges(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "keelmq_build_info",
            "1; the labels say what runs",
            labels=["version", "commit", "feature_level_min", "feature_level_max"],
        )
        info.add_metric([FEATURES.version, COMMIT, str(FEATURES.minimum), str(FEATURES.maximum)], 1)
        yield info
        yield gauge("keelmq_feature_level", "Feature level in force", self._core.raft.feature_levels.in_force)


def build_view(core: Core, node_id: int) -> BuildView:
    """Return the version and feature levels of a node, as far as this node knows them."""
    build = core.raft.feature_levels.build_of(node_id)
    return BuildView(
        node_id=node_id,
        version=build.version if build is not None else None,
        commit=(build.commit or None) if build is not None else None,
        feature_level_min=build.level_min if build is not None else None,
        feature_level_max=build.level_max if build is not None else None,
    )
