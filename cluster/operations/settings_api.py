"""Shows and changes the settings of the whole cluster, which are replicated and may change while it runs."""

from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Explained
from cluster.http.responses import Response, as_view
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import RETENTION_BYTES_MAX
from cluster.security.access import ADMINISTRATION, CLUSTER_DESCRIBED
from store.commands.cluster import PutSettings, SettingsPut


class SettingsRequest(Explained, kw_only=True, frozen=True):
    reject_transactions: bool | None = None
    log_retention_bytes: Annotated[int, Meta(ge=-1, le=RETENTION_BYTES_MAX)] | None = None


_decoder: Final = msgspec.json.Decoder(SettingsRequest)


class SettingsView(Response, kw_only=True, frozen=True):
    """The settings of the whole cluster; -1 in a limit is no limit."""

    reject_transactions: bool
    log_retention_bytes: int


class SettingsApi:
    """Handles /v1/cluster/settings."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        path = "/v1/cluster/settings"
        return [
            Route(
                "GET",
                path,
                self.show,
                "Show the settings of the cluster",
                {200: json_of(SettingsView)},
                errors=("no_leader",),
                redirects=True,
                access=CLUSTER_DESCRIBED,
            ),
            Route(
                "PUT",
                path,
                self.put,
                "Change the given settings of the cluster",
                {200: json_of(SettingsView)},
                body={JSON: SettingsRequest},
                errors=WRITE_ERRORS,
                redirects=True,
                access=ADMINISTRATION,
            ),
        ]

    async def show(self, request: web.Request) -> web.Response:
        self._core.require_leader()  # a replica that lags would show former settings
        return json_response(as_view(SettingsView, self._core.state.settings))

    async def put(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        body = await read_json(request, self._core, _decoder)
        applied = await self._core.propose(PutSettings(body.reject_transactions, body.log_retention_bytes), by=request)
        put: SettingsPut = applied.result
        return json_response(as_view(SettingsView, put.settings))
