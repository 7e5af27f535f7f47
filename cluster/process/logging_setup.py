"""Log lines on standard error: plain for people, JSON for collectors."""

import logging
import sys
import time
from typing import Final, Literal

import msgspec
from aiohttp.http_exceptions import HttpProcessingError

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in b"\t\n"}
"""How control characters are logged: what clients send must not move the cursor of whoever reads the log."""
_JSON_CONTROLS: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Those that JSON does not escape by itself."""


class PlainFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO  raft.node: became leader of term 5`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Lines that continue a message are indented: none of them reads as a line of its own."""
        return super().format(record).translate(_CONTROLS).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode().translate(_JSON_CONTROLS)


def without_trace_of_strangers(record: logging.LogRecord) -> bool:
    """Whoever does not speak HTTP is told so by the server; here it is a line, not an error with a trace."""
    error = record.exc_info[1] if record.exc_info else None
    if record.name == "aiohttp.server" and isinstance(error, HttpProcessingError) and error.code < 500:
        record.msg, record.args = "%s: %s", (record.getMessage(), error.message.partition("\n")[0].rstrip(":"))
        record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
    return True


def set_up_logging(level: str, form: Literal["plain", "json"]) -> None:
    """Send every logger's lines to standard error in the given form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if form == "plain" else JsonFormatter())
    handler.addFilter(without_trace_of_strangers)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
