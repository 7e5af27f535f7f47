"""The SDK's logger, `keelmq`. Every record is one line, except tracebacks, which are logged at DEBUG level.

Errors of handlers and answers of brokers are foreign text. It is escaped here, for all modules, and not by the
formatters, which belong to the application.
"""

import logging
import textwrap
import traceback
from typing import Final

from keelmq.printable import error_text, one_line, printable

TRACEBACK_MAX: Final = 20_000
"""Maximum number of characters of a traceback."""


class _Escaping(logging.Filter):
    """Escapes texts and errors among the arguments of a record, and its traceback. Lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        if record.exc_info and record.exc_info[0] is not None:
            # Formatters write `exc_text` where it is set, instead of formatting the error themselves.
            lines = "".join(traceback.format_exception(*record.exc_info))[:TRACEBACK_MAX]
            record.exc_text = textwrap.indent(printable(lines.rstrip("\n")), "    ")
        return True


def _shown(value: object) -> object:
    if isinstance(value, BaseException):
        return one_line(error_text(value))
    return one_line(value) if isinstance(value, str) else value


log: Final = logging.getLogger("keelmq")
log.addFilter(_Escaping())


def log_error_of_application(what: str, error: BaseException) -> None:
    """Log `what` failed and the error in one line, and the traceback at DEBUG level."""
    log.error("%s: %s: %s", what, type(error).__name__, error, stacklevel=2)
    log.debug("%s: traceback", what, exc_info=error, stacklevel=2)
