"""Shows the options that a node runs with, and shows and sets what it logs, until it is started again or gets a
SIGHUP.
"""

import logging
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster import VERSION
from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Request
from cluster.http.responses import Response
from cluster.http.routes import JSON, Route, json_of
from cluster.problems import Problem
from cluster.process.config_description import described
from cluster.process.config_loading import LoadedConfig
from cluster.process.logging_setup import Level, is_logger, log_levels, root_level, set_log_level, set_logger_level
from cluster.security.access import ADMINISTRATION, CLUSTER_DESCRIBED

logger = logging.getLogger(__name__)


class LogLevelRequest(Request, kw_only=True, frozen=True):
    """The lowest severity that is logged from now on: by the whole node, or by `logger` and those below it. With null a
    logger follows the node again.
    """

    level: Level | None
    logger: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class LogLevelView(Response, kw_only=True, frozen=True):
    """Lowest severity that the node logs, lowest severity by its configuration, and levels of the loggers that have
    their own.

    Changes end with the process, and with the next SIGHUP.
    """

    node_id: int
    level: str
    configured: str
    loggers: dict[str, str]


class OptionView(Response, kw_only=True, frozen=True):
    """The value of an option as JSON, without credentials, and where it comes from: the file, the variable or the flag;
    `default` for one that was not given.
    """

    value: Any
    source: str


class NodeConfigView(Response, kw_only=True, frozen=True):
    """All options that the node has run with since its start, by name."""

    node_id: int
    version: str
    options: dict[str, OptionView]


_decoder = msgspec.json.Decoder(LogLevelRequest)


class LogLevelApi:
    """Handles /v1/cluster/log-level, for the node that is asked."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        path = "/v1/cluster/log-level"
        return [
            Route("GET", path, self.show, "Show what this node logs", {200: json_of(LogLevelView)}, CLUSTER_DESCRIBED),
            Route(
                "PUT",
                path,
                self.change,
                "Change what this node logs, until it is started again or gets a SIGHUP",
                {200: json_of(LogLevelView)},
                body={JSON: LogLevelRequest},
                access=ADMINISTRATION,
            ),
        ]

    async def show(self, _: web.Request) -> web.Response:
        return json_response(self._view())

    async def change(self, request: web.Request) -> web.Response:
        asked = await read_json(request, self._core, _decoder)
        if asked.logger is not None:
            if not is_logger(asked.logger):
                detail = (
                    f"logger: {asked.logger!r} is none of this node, or its level is fixed; take the name of a log line"
                )
                raise Problem("invalid_request", detail)
            set_logger_level(asked.logger, asked.level)
        elif asked.level is None:
            raise Problem("invalid_request", "level: null is for a logger, which then follows the node again")
        else:
            set_log_level(asked.level, keeps_loggers=True)
        level = asked.level or "the node's"
        # A warning, so that it is seen whatever the level is now.
        logger.warning("the log level%s is %s until the next start or SIGHUP", _of(asked.logger), level)
        return json_response(self._view())

    def _view(self) -> LogLevelView:
        return LogLevelView(
            node_id=self._core.raft.node_id,
            level=root_level(),
            configured=self._core.config.log_level,
            loggers=log_levels(),
        )


class NodeConfigApi:
    """Handles /v1/node/config, for the node that is asked."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        summary = "Show the options that this node runs with"
        answers = {200: json_of(NodeConfigView)}
        return [Route("GET", "/v1/node/config", self.show, summary, answers, CLUSTER_DESCRIBED)]

    async def show(self, _: web.Request) -> web.Response:
        config = self._core.config
        given_by = config.given_by if isinstance(config, LoadedConfig) else {}
        options = {
            name: OptionView(value=msgspec.Raw(value.encode()), source=given_by.get(name, "default"))
            for name, value in described(config).items()
        }
        return json_response(NodeConfigView(node_id=self._core.raft.node_id, version=VERSION, options=options))


def _of(name: str | None) -> str:
    return "" if name is None else f" of {name}"
