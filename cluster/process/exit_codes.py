"""How `keelmqd` ends. docs/configuration.md lists the codes for operators and their service managers."""

import enum


class ExitCode(enum.IntEnum):
    """One code per kind of action an operator must take."""

    STOPPED = 0
    BUG = 1
    """Something unforeseen at the start; the trace is in the log."""
    BAD_CONFIG = 2
    ADDRESS_UNAVAILABLE = 3
    DATA_DIR_UNUSABLE = 4
    LOG_CORRUPT = 5
    FATAL = 6
    """While running: going on could have lost data. Starting again is safe; read the reason first."""
    WRONG_VERSION = 7
    """At the start or while running: the cluster is at a feature level that this build does not know. Nothing was
    changed; the message names the version to start."""


class StartupError(Exception):
    """The node cannot start. The message is one line and says what to do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
