"""Bounds of the values that an operator gives with a change of a group: its settings, and the note of who does it and
why. They stand beside the commands that have them, so that all of these refuse alike.
"""

from store.commands.groups import PutGroup
from store.errors import INVALID_REQUEST, Refused
from store.limits import DELAY_MAX_MS, OPERATOR_BYTES_MAX, REASON_BYTES_MAX, RETRY_DELAYS_MAX, RETRY_MAX_ATTEMPTS_MAX


def check_settings(command: PutGroup) -> None:
    """Refuse (`invalid_request`) a setting that is out of its range."""
    attempts, delays_ms = command.retry_max_attempts, command.retry_delays_ms
    if attempts is not None and not 0 <= attempts <= RETRY_MAX_ATTEMPTS_MAX:
        raise Refused(INVALID_REQUEST, f"retry_max_attempts must be 0 to {RETRY_MAX_ATTEMPTS_MAX}, not {attempts}")
    if delays_ms is not None and not 1 <= len(delays_ms) <= RETRY_DELAYS_MAX:
        raise Refused(INVALID_REQUEST, f"retry_delays_ms: 1 to {RETRY_DELAYS_MAX} of them, not {len(delays_ms)}")
    for delay_ms in delays_ms or ():
        if not 0 <= delay_ms <= DELAY_MAX_MS:
            raise Refused(INVALID_REQUEST, f"retry_delays_ms must be 0 to {DELAY_MAX_MS}, not {delay_ms}")


def check_note(operator: str, reason: str) -> None:
    """Refuse (`invalid_request`) an operator or reason that is too long."""
    for name, text, most in (("operator", operator, OPERATOR_BYTES_MAX), ("reason", reason, REASON_BYTES_MAX)):
        if len(text.encode()) > most:
            raise Refused(INVALID_REQUEST, f"{name}: more than {most} bytes")
