"""Notes of the client at the other end of a connection, for those who ask which clients a node has."""

from collections.abc import Callable
from functools import partial
from typing import Final

from aiohttp import web

from cluster.budgets.holdings import Holdings, Listener

NOTED_EVERY_S: Final = 1.0
"""Seconds after which credentials and user agent of a connection are looked at again."""
AGENT_CHARACTERS_MAX: Final = 200
GROUPS_NOTED_MAX: Final = 16
"""Maximum number of groups that are noted for one connection; for the next one, the first one noted is forgotten."""
CONSUMING: Final = frozenset(
    {
        ("POST", "/v1/groups/{group}/members"),
        ("POST", "/v1/groups/{group}/members/{member_id}/heartbeat"),
        ("POST", "/v1/groups/{group}/retries"),
        ("POST", "/v1/groups/{group}/pop"),
        ("POST", "/v1/groups/{group}/pop/ack"),
        ("POST", "/v1/groups/{group}/pop/invisible"),
    }
)
"""Routes that only members and pop consumers of a group use."""
CHECKING: Final = ("GET", "/v1/producer-groups/{group}/checks")
LEAVING: Final = ("DELETE", "/v1/groups/{group}/members/{member_id}")


class ClientNotes:
    """Notes of one connection's client. Use on the event loop only."""

    __slots__ = (
        "_give_back",
        "_next_look_s",
        "agent",
        "consumer_groups",
        "holder",
        "is_beyond",
        "number",
        "opened_s",
        "principal",
        "producer_groups",
        "requests",
        "under_way",
    )

    def __init__(self) -> None:
        self.number = 0
        """Number of the connection: later ones of the same process have larger ones."""
        self.opened_s = 0.0
        self.requests = 0
        self.under_way = 0
        """Number of requests that are not answered yet."""
        self.agent: str | None = None
        self.principal: str | None = None
        """Name of the principal of a late request; None while authentication is off."""
        self.consumer_groups: dict[str, str | None] = {}
        """Groups that the client consumes in, with its member id; None for a pop consumer."""
        self.producer_groups: dict[str, None] = {}
        self._next_look_s = 0.0
        self.holder: str | None = None
        """For whom the connection counts, beside its address: None before its first request."""
        self.is_beyond = False
        """True when that one has no room for the connection, which ends with its next answer."""
        self._give_back: Callable[[], None] | None = None

    def counts_for(self, holder: str, holdings: Holdings, listener: Listener) -> None:
        """Count the connection for who sends its requests now. Raises Problem quota_exceeded or overloaded when that
        one has no room; the connection counts for nobody then.
        """
        if holder == self.holder:
            return
        self.ends()
        self.is_beyond = True
        holdings.require_room(listener, holder)
        self.is_beyond, self.holder = False, holder
        holdings.take(listener, holder)
        self._give_back = partial(holdings.give_back, listener, holder)

    def ends(self) -> None:
        """Stop counting the connection."""
        give_back, self._give_back, self.holder = self._give_back, None, None
        if give_back is not None:
            give_back()

    def is_look_due(self, now_s: float) -> bool:
        """Return whether to look at the request again, which then counts as done."""
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + NOTED_EVERY_S
        return True

    def look(self, request: web.Request, principal: str | None) -> None:
        """Note who sends the request, and with which program."""
        agent = request.headers.get("User-Agent")
        # Bytes that are no text became lone surrogates, which no answer can hold.
        self.agent = None if agent is None else agent[:AGENT_CHARACTERS_MAX].encode(errors="replace").decode()
        self.principal = principal

    def answered(self, request: web.Request, route: str) -> None:
        """Note the groups of a request that was answered without an error, by the path of its route."""
        names, called = request.match_info, (request.method, route)
        if called in CONSUMING:
            group, member_id = names["group"], names.get("member_id")
            if member_id is not None or group not in self.consumer_groups:
                self.consumer_groups[group] = member_id
                _trim(self.consumer_groups)
        elif called == CHECKING:
            self.produces(names["group"])
        elif called == LEAVING and self.consumer_groups.get(names["group"]) == names["member_id"]:
            del self.consumer_groups[names["group"]]

    def produces(self, group: str) -> None:
        """Note that the client sends transactions of the producer group."""
        self.producer_groups[group] = None
        _trim(self.producer_groups)


def _trim(noted: dict[str, str | None] | dict[str, None]) -> None:
    if len(noted) > GROUPS_NOTED_MAX:
        del noted[next(iter(noted))]
