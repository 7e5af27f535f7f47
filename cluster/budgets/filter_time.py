"""Processor time of the filters of one request, charged to its principal (quotas.py).

A filter is charged for the steps of its search: reading rows, unpacking blocks and evaluating the expression. A search
that has begun is never cut, so what it takes beyond the quota delays the next search of its principal.
"""

import contextlib
from collections.abc import Iterator

from cluster.budgets import time_shares
from cluster.budgets.quotas import Quotas


class FilterTime:
    """Measures the searches of the request that the present task handles. Use on the event loop only."""

    def __init__(self, quotas: Quotas | None) -> None:
        """Raise Problem quota_exceeded while the filters of the principal have taken more than its quota."""
        client = time_shares.current()
        quota = None if quotas is None or client is None else quotas.of_sender(client.sender)
        self._client, self._quotas = client, quotas
        self._quota = quota if quota is not None and quota.limits_filters else None
        if self._quota is not None and quotas is not None:
            self._quota.begin_filter(quotas.steady_s())

    @property
    def owes(self) -> bool:
        """True when the next search has to wait."""
        return (
            self._quota is not None
            and self._quotas is not None
            and self._quota.owes_filter_time(self._quotas.steady_s())
        )

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Charge the steps of the task until the block is left."""
        client, quota, quotas = self._client, self._quota, self._quotas
        if client is None or quota is None or quotas is None:
            yield
            return
        begun_s = client.settled_s()
        try:
            yield
        finally:
            quota.filtered(quotas.steady_s(), (client.settled_s() - begun_s) * 1_000)
