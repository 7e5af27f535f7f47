"""What clients may send to change the members of the cluster."""

from typing import Annotated

from msgspec import Meta

from cluster.requests import Request
from raft.membership import ADDRESS_LENGTH_MAX, NODE_ID_MAX, URL_LENGTH_MAX


class MemberRequest(Request, kw_only=True, frozen=True):
    """A node to add; its addresses are those by which the others and clients reach it."""

    node_id: Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]
    peer_address: Annotated[str, Meta(min_length=3, max_length=ADDRESS_LENGTH_MAX)]
    http_address: Annotated[str, Meta(min_length=8, max_length=URL_LENGTH_MAX)]


class RemoveQuery(Request, kw_only=True, frozen=True):
    """`force`: also when the voters that answer are no majority of those that would remain."""

    force: bool = False
