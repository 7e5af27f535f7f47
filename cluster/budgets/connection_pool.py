"""Connections that share a budget, and which of them are idle."""

import itertools
from typing import Generic, Protocol, TypeVar

from cluster.budgets.client_budget import ClientBudget
from cluster.budgets.client_notes import ClientNotes


class Pooled(Protocol):
    """A connection: the address at its other end, and what is known of its client."""

    address: str
    notes: ClientNotes


Member = TypeVar("Member", bound=Pooled)


class ConnectionPool(Generic[Member]):
    """Counts its connections by address in `budget`, which it owns. Use on the event loop only."""

    def __init__(self, budget: ClientBudget) -> None:
        self.budget = budget
        self._idle: dict[str, dict[Member, None]] = {}
        """Idle connections by address, the longest idle first."""

    @property
    def idle(self) -> list[Member]:
        return [connection for of_address in self._idle.values() for connection in of_address]

    def idle_of(self, holder: str) -> Member | None:
        """Return an idle connection that counts for the holder; None if there is none."""
        idle = itertools.chain.from_iterable(self._idle.values())
        return next((each for each in idle if each.notes.holder == holder), None)

    def add(self, connection: Member) -> None:
        """Take in a connection, which is idle."""
        self.budget.take(connection.address, 1)
        self.is_idle(connection)

    def remove(self, connection: Member) -> None:
        self.budget.give_back(connection.address, 1)
        self.is_busy(connection)

    def is_idle(self, connection: Member) -> None:
        """Note that no request of the connection is handled any more."""
        self._idle.setdefault(connection.address, {})[connection] = None

    def is_busy(self, connection: Member) -> None:
        """Note that a request of the connection is handled, or that it is gone."""
        of_address = self._idle.get(connection.address)
        if of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._idle[connection.address]

    def idle_of_largest(self, unless_smaller_than: str = "") -> Member | None:
        """Return the longest idle connection of the address that holds most. If no address with an idle connection
        holds more than `unless_smaller_than`, take that address; None when it has no idle connection.
        """
        address = self.budget.largest_holder(self._idle)
        if self.budget.held_by(address) <= self.budget.held_by(unless_smaller_than):
            address = unless_smaller_than
        return next(iter(self._idle.get(address, ())), None)
