"""Paces the TLS handshakes of each client address, because one costs the loop as much as several small requests.

An address may begin HANDSHAKES_AT_ONCE_MAX handshakes at once, and HANDSHAKES_PER_S_MAX a second in the long run (the
generic cell rate algorithm, ITU-T I.371). Further ones wait; their connections count for the address meanwhile.
"""

import time
from collections.abc import Callable
from typing import Final

from cluster.limits import TLS_HANDSHAKE_TIMEOUT_S

HANDSHAKES_PER_S_MAX: Final = 50
HANDSHAKES_AT_ONCE_MAX: Final = 200
ADDRESSES_LOOKED_OVER: Final = 1_024
"""Number of addresses from which on those that need not wait any more are forgotten."""

_INTERVAL_S: Final = 1 / HANDSHAKES_PER_S_MAX
_TOLERANCE_S: Final = (HANDSHAKES_AT_ONCE_MAX - 1) * _INTERVAL_S


class HandshakePace:
    """Tells each handshake when it may begin. Use it on the event loop only."""

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._free_at_s: dict[str, float] = {}
        """By address, the time at which all its handshakes so far would be over at the steady rate."""
        self._looked_over_at = ADDRESSES_LOOKED_OVER

    def wait_s(self, address: str) -> float | None:
        """Return the seconds until a new handshake of the address may begin; None if it would have to wait longer than
        a handshake may take, so that its connection is to be closed.
        """
        now_s = self._steady_s()
        free_at_s = max(self._free_at_s.get(address, now_s), now_s)
        wait_s = max(free_at_s - _TOLERANCE_S - now_s, 0.0)
        if wait_s > TLS_HANDSHAKE_TIMEOUT_S:
            return None
        self._free_at_s[address] = free_at_s + _INTERVAL_S
        if len(self._free_at_s) >= self._looked_over_at:
            self._free_at_s = {each: at_s for each, at_s in self._free_at_s.items() if at_s > now_s}
            self._looked_over_at = max(2 * len(self._free_at_s), ADDRESSES_LOOKED_OVER)
        return wait_s
