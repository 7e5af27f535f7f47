"""Administration calls about quotas, and their answers."""

from keelmq.admin.calls import AdminCalls
from keelmq.admin.view import View
from keelmq.transport.connection import Connection


class QuotaUsage(View, frozen=True, kw_only=True):
    """The quotas of one principal at one node, 0 being no limit, and what is left of them: None without a limit,
    negative while the principal has to wait for it. `weight` is its share of the log while more waits than one entry
    holds. `throttled` counts its refused requests; None where they are not told apart.
    """

    principal: str
    weight: int = 1
    requests_per_s: int
    in_bytes_per_s: int
    out_bytes_per_s: int
    filter_ms_per_s: int = 0
    connections: int = 0
    long_polls: int = 0
    held_bytes: int = 0
    requests_left: int | None = None
    in_bytes_left: int | None = None
    out_bytes_left: int | None = None
    filter_ms_left: int | None = None
    connections_left: int | None = None
    long_polls_left: int | None = None
    held_bytes_left: int | None = None
    throttled: int | None = None


class QuotaUsages:
    """Shows what principals have left of their quotas at the leader. Needs the permission `admin` on the cluster. The
    caller owns `connection`.
    """

    def __init__(self, connection: Connection) -> None:
        self._calls = AdminCalls(connection)

    async def all(self, *, kind: str = "user") -> list[QuotaUsage]:
        """Return the principals that were at work lately: users, or with kind `address` the client addresses that show
        no valid credentials.
        """
        return await self._calls.pages(QuotaUsage, "/v1/cluster/quotas", "principals", {"kind": kind})
