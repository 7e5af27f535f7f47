"""Checks of a group's settings."""

from store.commands.groups import PutGroup
from store.errors import INVALID_REQUEST, Refused
from store.limits import DELAY_MAX_MS, RETRY_DELAYS_MAX, RETRY_MAX_ATTEMPTS_MAX


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
