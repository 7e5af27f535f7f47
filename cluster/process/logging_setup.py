"""Writes log lines to standard error, plain for people or as JSON for collectors."""

import logging
import sys
import time
from typing import Final, Literal

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from cluster.process import request_scope
from cluster.process.line_pace import AUDIT_LOGGER, LinePace

_LINE_ENDS: Final = {code: f"\\u{code:04x}" for code in (0x2028, 0x2029)}
_CONTROLS: Final = _LINE_ENDS | {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\t\n"
}
"""Replacements of control characters in log lines: texts of clients must not move the cursor of a reader's terminal."""
_JSON_CONTROLS: Final = _LINE_ENDS | {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Replacements of the control characters that JSON encoding does not escape."""


Level = Literal["debug", "info", "warning", "error"]
"""Values of `log_level`."""
FIELDS: Final = "fields"
"""Name in `extra` of the further fields of a line, a dict, which JSON lines show by name."""
_ROOMS_OF_MANY_REQUESTS: Final = ("raft.", "store.")
"""Loggers whose steps carry out many requests at once, so that none of them is the cause of a line."""


def note_request(record: logging.LogRecord) -> bool:
    """Give the record the ids of the request that is being answered. Returns True, so that every record is logged."""
    scope = request_scope.current()
    if scope is not None and not record.name.startswith(_ROOMS_OF_MANY_REQUESTS):
        record.request_id, record.trace_id = scope.id, scope.trace_id
    return True


class PlainFormatter(logging.Formatter):
    """Formats plain lines such as `2026-01-31T12:00:00.123Z INFO    raft.node: became leader of term 5`. Lines of a
    request have its ids in front of the message: `WARNING cluster.http.slow: [request 5f3a9c01-2b trace 4bf9…] …`.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Format the record. Further lines of a message are indented, so that none looks like a separate log line."""
        return super().format(record).translate(_CONTROLS).replace("\n", "\n    ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is the library's)
        request_id, trace_id = getattr(record, "request_id", None), getattr(record, "trace_id", None)
        if request_id is not None:
            trace = f" trace {trace_id}" if trace_id else ""
            record.message = f"[request {request_id}{trace}] {record.message}"
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line. docs/logs.md promises the names of its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("request_id", "trace_id"):
            if (value := getattr(record, name, None)) is not None:
                line[name] = value
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode().translate(_JSON_CONTROLS)


def without_trace_of_strangers(record: logging.LogRecord) -> bool:
    """Turn errors of clients that do not speak HTTP into a warning without a trace; the server has answered them.
    Returns True, so that every record is logged.
    """
    error = record.exc_info[1] if record.exc_info else None
    if record.name == "aiohttp.server" and isinstance(error, HttpProcessingError) and error.code < 500:
        record.msg, record.args = "%s: %s", (record.getMessage(), error.message.partition("\n")[0].rstrip(":"))
        record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
    return True


def set_up_logging(level: str, form: Literal["plain", "json"]) -> None:
    """Send the lines of every logger to standard error in the given form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if form == "plain" else JsonFormatter())
    handler.addFilter(note_request)
    handler.addFilter(without_trace_of_strangers)
    handler.addFilter(LinePace())  # by the level that a line has then: errors of strangers hide no bugs
    root = logging.getLogger()
    root.handlers = [handler]
    set_log_level(level)


def set_log_level(level: str, *, keeps_loggers: bool = False) -> None:
    """Log lines of `level` and above from now on, and every line of the audit log. Levels of single loggers end, unless
    this `keeps_loggers`.
    """
    logging.getLogger().setLevel(level.upper())
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    if not keeps_loggers:
        for name in log_levels():
            set_logger_level(name, None)


def set_logger_level(name: str, level: Level | None) -> None:
    """Log lines of `level` and above of this logger and those below it; with None it follows the node again."""
    logging.getLogger(name).setLevel(logging.NOTSET if level is None else level.upper())


def is_logger(name: str) -> bool:
    """Return whether the name is that of a logger, or of a package with loggers, whose level may be set."""
    return name in logging.root.manager.loggerDict and not _is_audit(name)


def root_level() -> str:
    """Return the lowest severity that is logged where no logger has a level of its own."""
    return logging.getLevelName(logging.getLogger().level).lower()


def log_levels() -> dict[str, str]:
    """Return the loggers with a level of their own, by name."""
    found = {}
    for name, each in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(each, logging.Logger) and each.level != logging.NOTSET and not _is_audit(name):
            found[name] = logging.getLevelName(each.level).lower()
    return found


def _is_audit(name: str) -> bool:
    return name == AUDIT_LOGGER or name.startswith(f"{AUDIT_LOGGER}.")
