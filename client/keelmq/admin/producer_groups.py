"""Administration calls about producer groups, and their answers."""

from urllib.parse import quote

from keelmq.admin.calls import AdminCalls
from keelmq.admin.requests import SetCheckUrl
from keelmq.admin.view import View
from keelmq.limits import check_group
from keelmq.transport.connection import Connection


class ProducerGroup(View, frozen=True, kw_only=True):
    """A producer group with the URL to which checks are sent; None when its producers poll for them."""

    producer_group: str
    check_url: str | None = None


class ProducerGroups:
    """Shows and sets the check URLs of producer groups. The caller owns `connection`."""

    def __init__(self, connection: Connection) -> None:
        self._calls = AdminCalls(connection)

    async def all(self) -> list[ProducerGroup]:
        """Return the producer groups that have a check URL and that the client may alter, fetched page by page."""
        return await self._calls.pages(ProducerGroup, "/v1/producer-groups", "producer_groups", {})

    async def put(self, producer_group: str, *, check_url: str | None) -> ProducerGroup:
        """Set the URL to which checks are sent; with None, its producers poll for them. Durable on return."""
        check_group(producer_group)
        path = f"/v1/producer-groups/{quote(producer_group, safe='')}"
        return await self._calls.view(ProducerGroup, "PUT", path, SetCheckUrl(check_url))
