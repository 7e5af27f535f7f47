"""What clients may send to change the members of the cluster."""

from typing import Annotated

from msgspec import Meta

from cluster.http.requests import Request
from raft.membership import ADDRESS_LENGTH_MAX, NODE_ID_MAX, URL_LENGTH_MAX


class MemberRequest(Request, kw_only=True, frozen=True):
    """A node to add; its addresses are those by which the others and clients reach it."""

    node_id: Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]
    peer_address: Annotated[str, Meta(min_length=3, max_length=ADDRESS_LENGTH_MAX)]
    http_address: Annotated[str, Meta(min_length=8, max_length=URL_LENGTH_MAX)]


class AddressRequest(Request, kw_only=True, frozen=True):
    """Where a node is now; what is left out stays as it is."""

    peer_address: Annotated[str, Meta(min_length=3, max_length=ADDRESS_LENGTH_MAX)] | None = None
    http_address: Annotated[str, Meta(min_length=8, max_length=URL_LENGTH_MAX)] | None = None


class AddressQuery(Request, kw_only=True, frozen=True):
    """`force`: also when the node does not answer there yet."""

    force: bool = False


class RemoveQuery(Request, kw_only=True, frozen=True):
    """`force`: also when the voters that answer are no majority of those that would remain."""

    force: bool = False


class RebuildQuery(Request, kw_only=True, frozen=True):
    """`node_id`: the node that is meant, refused by another one. `force`: also when the others that hold what is
    committed are no majority.
    """

    node_id: Annotated[int, Meta(ge=1, le=NODE_ID_MAX)] | None = None
    force: bool = False
