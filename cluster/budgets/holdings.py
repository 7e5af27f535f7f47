"""Holdings: what each principal has of a node at a time, in connections, long polls and bytes.

Beside the shares of client addresses (client_budget.py), all addresses of one principal together may have three
quarters of what other principals leave, as in front of the log (raft/fair_queue.py). The file of quotas may say less,
in numbers: for users, and for each client address without valid credentials, which holds what its requests hold. The
built-in administrator is not limited.

Who holds nothing of a kind may always have one unit, whatever its size, so a limit delays large requests and refuses
none for ever.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from cluster.budgets import time_shares
from cluster.budgets.client_budget import ClientBudget
from cluster.budgets.quotas import HeldQuota, Quotas
from cluster.budgets.time_shares import PRINCIPAL_SENDER
from cluster.limits import RESPONSE_BYTES_MAX
from cluster.problems import Problem
from cluster.process.config import NodeConfig
from cluster.process.quota_file import ADMINISTRATOR

PRINCIPAL_SHARE_PERCENT: Final = 75
"""Share that one principal may have of the room that the others leave."""
ADMINISTRATION_BYTES: Final = 1024 * 1024
"""Bytes of request bodies that are reserved for administration, in addition to the bytes of other requests."""

Listener = Literal["http_listen", "admin_listen"]
"""Listeners by their options, each with connections of its own."""
Held = Listener | Literal["long_polls", "request_bytes", "response_bytes"]
"""Kinds of holdings: connections at a listener, waiting requests, bytes of request bodies, bytes of unread answers."""

_QUOTAS: Final[dict[Held, HeldQuota]] = {
    "http_listen": "connections",
    "admin_listen": "connections",
    "long_polls": "long_polls",
    "request_bytes": "held_bytes",
    "response_bytes": "held_bytes",
}
_NAMES: Final[dict[Held, str]] = {
    "http_listen": "connections",
    "admin_listen": "connections",
    "long_polls": "long polls",
    "request_bytes": "bytes of requests",
    "response_bytes": "bytes of unread answers",
}
_UNBOUNDED: Final = 1 << 62
_ADMINISTRATOR: Final = PRINCIPAL_SENDER + ADMINISTRATOR


def request_bytes_max(config: NodeConfig) -> int:
    """Return the bytes of request bodies that a node holds at a time. The largest request fits one address' share."""
    fits_largest = -(-config.max_request_bytes * 100 // config.address_share_percent)
    return max(config.max_in_flight_bytes, fits_largest) + ADMINISTRATION_BYTES


class Holdings:
    """Counts what holders have: principals, and addresses without one, as `Client.sender` names them. Use on the event
    loop only.
    """

    def __init__(self, config: NodeConfig, connections: Mapping[Listener, int], quotas: Quotas | None) -> None:
        """Create it for a node with this number of `connections` at each listener."""
        limits: dict[Held, int] = {
            **{listener: limit for listener, limit in connections.items()},
            "long_polls": _UNBOUNDED,  # each has a connection of its own
            "request_bytes": request_bytes_max(config) - ADMINISTRATION_BYTES,
            "response_bytes": RESPONSE_BYTES_MAX,
        }
        self._budgets = {held: ClientBudget(limit, PRINCIPAL_SHARE_PERCENT) for held, limit in limits.items()}
        self._quotas = quotas

    def held_by(self, holder: str, quota: HeldQuota) -> int:
        """Return the amounts of a holder that count for the quota."""
        return sum(budget.held_by(holder) for held, budget in self._budgets.items() if _QUOTAS[held] == quota)

    def require_room(
        self, held: Held, holder: str, size: int = 1, *, own: int = 0, keeps_session: bool = False
    ) -> None:
        """Raise Problem quota_exceeded or overloaded when the holder may not have `size` units more for a request that
        has `own` units already. A request that keeps a session may have as much again as the quota.
        """
        if holder == _ADMINISTRATOR:
            return
        quota = None if self._quotas is None else self._quotas.of_sender(holder)
        if quota is not None and (has := self.held_by(holder, _QUOTAS[held])) > own:
            quota.require_held(_QUOTAS[held], has, size, keeps_session=keeps_session)
        budget = self._budgets[held]
        if holder.startswith(PRINCIPAL_SENDER) and budget.held_by(holder) > own and not budget.has_room(holder, size):
            name = holder.removeprefix(PRINCIPAL_SENDER)
            raise Problem(
                "overloaded",
                f"{name} has {budget.held_by(holder)} of {budget.held} {_NAMES[held]} at this node, from all its "
                f"addresses; {size} more would be beyond its share; send it again later",
            )

    def take(self, held: Held, holder: str, size: int = 1) -> None:
        """Count `size` more units, whether there is room or not."""
        self._budgets[held].take(holder, size)

    def give_back(self, held: Held, holder: str, size: int = 1) -> None:
        self._budgets[held].give_back(holder, size)

    @contextlib.contextmanager
    def holding(self, held: Held, holder: str, size: int = 1) -> Iterator[None]:
        self.take(held, holder, size)
        try:
            yield
        finally:
            self.give_back(held, holder, size)

    @contextlib.contextmanager
    def long_poll(self, *, keeps_session: bool = False) -> Iterator[None]:
        """Count the present request as one that waits, until the block is left. Raises as `require_room` does."""
        holder = time_shares.sender()
        self.require_room("long_polls", holder, keeps_session=keeps_session)
        self.take("long_polls", holder)
        try:
            yield
        finally:
            self.give_back("long_polls", holder)
