"""Adds, moves and removes nodes while the cluster runs. docs/membership.md says when which change is possible."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import JSON, Route, json_of
from cluster.problems import Problem
from cluster.process.addresses import Address, ConfigError, is_unspecified, parse_address, parse_url
from cluster.security.access import ADMINISTRATION
from raft.config import NODE_ID_MAX, PeerAddress
from raft.errors import MembershipRefused, NotLeader, ProtocolError
from raft.membership import ADDRESS_LENGTH_MAX, URL_LENGTH_MAX, Configuration, Member, unknown_node


class MemberRequest(Request, kw_only=True, frozen=True):
    """A node to add. Other nodes reach it at `peer_address`, clients at `http_address`."""

    node_id: Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]
    peer_address: Annotated[str, Meta(min_length=3, max_length=ADDRESS_LENGTH_MAX)]
    http_address: Annotated[str, Meta(min_length=8, max_length=URL_LENGTH_MAX)]


class AddressRequest(Request, kw_only=True, frozen=True):
    """The new addresses of a node. An address that is left out does not change."""

    peer_address: Annotated[str, Meta(min_length=3, max_length=ADDRESS_LENGTH_MAX)] | None = None
    http_address: Annotated[str, Meta(min_length=8, max_length=URL_LENGTH_MAX)] | None = None


class AddressQuery(Request, kw_only=True, frozen=True):
    """Changes the address with `force` even if the node does not answer there yet."""

    force: bool = False


class RemoveQuery(Request, kw_only=True, frozen=True):
    """Removes the node with `force` even if the voters that answer are no majority of the remaining voters."""

    force: bool = False


CHANGE_ERRORS: Final = ("no_leader", "unknown_outcome", "disk_full", "change_in_progress")
NODE_ID_DIGITS_MAX: Final = 10

_decoder: Final = msgspec.json.Decoder(MemberRequest)
_address_decoder: Final = msgspec.json.Decoder(AddressRequest)


class MemberView(Response, kw_only=True, frozen=True):
    node_id: int
    peer_address: str
    http_address: str
    membership: Literal["voter", "learner"]


class MembersView(Response, kw_only=True, frozen=True):
    """The nodes after a change. `configuration_index` is the index of the log record with the change."""

    configuration_index: int
    members: list[MemberView]
    warnings: list[str]


class MemberApi:
    """Handles /v1/cluster/members."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        path = "/v1/cluster/members"
        view = {200: json_of(MembersView)}
        return [
            Route(
                "POST",
                path,
                self.add,
                "Add a node as a learner, which gets the log, and neither votes nor counts",
                view,
                body={JSON: MemberRequest},
                errors=("node_exists", "too_many_nodes", "no_peer_address", *CHANGE_ERRORS),
                redirects=True,
                access=ADMINISTRATION,
            ),
            Route(
                "POST",
                path + "/{node_id}/promote",
                self.promote,
                "Make a learner that has caught up a voter",
                view,
                errors=("node_not_found", "not_caught_up", "quorum_at_risk", *CHANGE_ERRORS),
                redirects=True,
                access=ADMINISTRATION,
            ),
            Route(
                "POST",
                path + "/{node_id}/lead",
                self.lead,
                "Hand leadership over to a voter that has caught up",
                view,
                errors=("node_not_found", "node_drained", "not_caught_up", "change_in_progress", "no_leader"),
                redirects=True,
                access=ADMINISTRATION,
            ),
            Route(
                "DELETE",
                path + "/{node_id}",
                self.remove,
                "Remove a node, running or not; a leader hands over first and redirects",
                view,
                query=RemoveQuery,
                errors=("node_not_found", "last_voter", "quorum_at_risk", *CHANGE_ERRORS),
                redirects=True,
                access=ADMINISTRATION,
            ),
            Route(
                "PUT",
                path + "/{node_id}/address",
                self.set_address,
                "Change the addresses of a node, which must answer there already, unless forced",
                view,
                body={JSON: AddressRequest},
                query=AddressQuery,
                errors=("node_not_found", "node_exists", "address_unreachable", *CHANGE_ERRORS),
                redirects=True,
                access=ADMINISTRATION,
            ),
        ]

    async def add(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        body = await read_json(request, self._core, _decoder)
        learner = _learner(body)
        self._require_reachable()
        known = self._core.raft.configuration.find(body.node_id)
        if known is not None and msgspec.structs.replace(known, voter=False) == learner:
            self._require_committed()
            return self._answer()  # the request has come twice
        await self._core.change_members(lambda configuration: configuration.with_learner(learner), by=request)
        return self._answer()

    async def promote(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        node_id = _node_id(request)
        known = self._core.raft.configuration.find(node_id)
        if known is not None and known.voter:
            self._require_committed()
            return self._answer()

        def change(configuration: Configuration) -> Configuration:
            following = configuration.with_voter(node_id)
            if not self._core.raft.is_caught_up(node_id):
                raise MembershipRefused("not_caught_up", self._what_is_missing(node_id))
            self._require_quorum(following)
            return following

        await self._core.change_members(change, by=request)
        return self._answer()

    async def lead(self, request: web.Request) -> web.Response:
        """Hand over to the named voter. The next leader answers, to which this one redirects: there it is done."""
        core = self._core
        core.require_leader()
        node_id = _node_id(request)
        raft = core.raft
        known = raft.configuration.find(node_id)
        if known is None:
            raise unknown_node(node_id)
        if node_id == raft.node_id:
            return self._answer()
        self._require_committed()
        if not (known.voter and raft.is_caught_up(node_id)):
            reason = self._what_is_missing(node_id) if known.voter else f"node {node_id} is a learner; promote it first"
            raise MembershipRefused("not_caught_up", reason)
        if raft.vital_signs.is_drained(node_id):
            raise MembershipRefused("node_drained", f"node {node_id} is drained; next: keelmq node undrain {node_id}")
        if not await raft.hand_over(node_id):
            raise Problem(
                "no_leader",
                f"node {node_id} has not taken the leadership over in time, and this one leads on; try again",
            )
        if raft.leader_id in (None, raft.node_id):
            raise Problem("no_leader", "leadership was handed over, the next leader is not known yet; try again")
        raise NotLeader(raft.leader_id)

    async def remove(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        node_id = _node_id(request)
        force = parse_query(RemoveQuery, request.query).force

        def change(configuration: Configuration) -> Configuration:
            if configuration.find(node_id) is None:
                self._require_committed()
            following = configuration.without(node_id)
            if not force:
                self._require_quorum(following)
            return following

        if node_id == core.raft.node_id:
            change(core.raft.configuration)
            if not await core.raft.hand_over():
                raise Problem("no_leader", "no other voter could take the leadership over in time; try again")
            if core.raft.leader_id in (None, node_id):
                raise Problem("no_leader", "leadership was handed over, the next leader is not known yet; try again")
            raise NotLeader(core.raft.leader_id)
        await core.change_members(change, by=request)
        return self._answer()

    async def set_address(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        node_id = _node_id(request)
        force = parse_query(AddressQuery, request.query).force
        body = await read_json(request, core, _address_decoder)
        if body.peer_address is None and body.http_address is None:
            raise Problem("invalid_request", "give peer_address, http_address or both")
        address = None if body.peer_address is None else _peer_address(body.peer_address)
        url = None if body.http_address is None else _http_address(body.http_address)

        def change(configuration: Configuration) -> Configuration:
            return configuration.with_address(node_id, address, url)

        is_logged = core.raft.configuration_index > 0  # else each node has the addresses that it was started with
        if change(core.raft.configuration) == core.raft.configuration and is_logged:
            self._require_committed()
            return self._answer()  # the addresses are the same, or the request has come twice
        if address is not None and not force:
            await self._require_answer(node_id, address)
        await core.change_members(change, by=request)
        return self._answer()

    async def _require_answer(self, node_id: int, address: PeerAddress) -> None:
        try:
            await self._core.raft.check_answers(node_id, address)
        except (OSError, TimeoutError, ProtocolError, UnicodeError) as error:
            raise Problem(
                "address_unreachable",
                f"node {node_id} does not answer at {Address(address.host, address.port)}: "
                f"{str(error) or type(error).__name__}. Start it there first, or use --force if it will be started "
                "there later",
            ) from None

    def _what_is_missing(self, node_id: int) -> str:
        peers = self._core.raft.peers
        if not peers[node_id].connected:
            return f"node {node_id} does not answer at the address that it was added with; is it running?"
        if peers[node_id].snapshot_percent is not None:
            return f"node {node_id} is being sent a snapshot; try again"
        silent = [peer for peer, status in peers.items() if not status.connected]
        if not silent:
            return f"node {node_id} is not up to date yet; try again"
        return (
            f"node {node_id} is not up to date yet, and its disk counts only when it has heard from every node; "
            f"{silent} cannot be reached: start them, or remove them first if they are gone for good"
        )

    def _require_reachable(self) -> None:
        """Raise Problem no_peer_address unless this node was started with addresses at which other nodes and clients
        can reach it, because they are told these addresses.
        """
        raft = self._core.raft
        own = raft.configuration.find(raft.node_id)
        if not raft.config.serves_peers:
            reason = "this node has no address for peers; start it with --peer or --peer-listen"
        elif own is not None and is_unspecified(own.host):
            reason = (
                f"no other node could reach this one at {Address(own.host, own.port)}; start it with --peer-listen at "
                "an address that they can reach, or with a --peer that names such an address"
            )
        elif own is not None and _has_unspecified_host(own.url):
            reason = f"no client could be sent to this node at {own.url}; start it with --http-url and its address"
        else:
            return
        raise Problem("no_peer_address", reason)

    def _require_quorum(self, following: Configuration) -> None:
        """Raise MembershipRefused unless a majority of the following voters answers: a change is in force at once, and
        without a majority it could never be undone.
        """
        answering = self._core.raft.answering_voters() & following.voters
        if not following.has_majority(answering):
            raise MembershipRefused(
                "quorum_at_risk",
                f"of the voters after the change, {sorted(following.voters)}, only {sorted(answering)} answer: the "
                "cluster would stop. Start the others first",
            )

    def _require_committed(self) -> None:
        """Raise MembershipRefused while the last change is not committed. Call it before a change is reported as done
        already.
        """
        raft = self._core.raft
        if raft.configuration_index > raft.commit_index:
            raise MembershipRefused(
                "change_in_progress", "the last change of the cluster's nodes is not committed yet; try again"
            )

    def _answer(self) -> web.Response:
        raft = self._core.raft
        configuration = raft.configuration
        warnings = []
        if len(configuration.voters) % 2 == 0:
            voters = len(configuration.voters)
            warnings.append(f"{voters} voters tolerate the loss of no more nodes than {voters - 1} voters do")
        return json_response(
            MembersView(
                configuration_index=raft.configuration_index,
                members=[
                    MemberView(
                        node_id=member.node_id,
                        peer_address=str(Address(member.host, member.port)),
                        http_address=self._core.url_of(member.node_id) or member.url,
                        membership="voter" if member.voter else "learner",
                    )
                    for member in configuration.members
                ],
                warnings=warnings,
            )
        )


def _learner(body: MemberRequest) -> Member:
    address, url = _peer_address(body.peer_address), _http_address(body.http_address)
    return Member(body.node_id, address.host, address.port, url, voter=False)


def _peer_address(given: str) -> PeerAddress:
    with _invalid_requests():
        address = parse_address(given, "peer_address")
    if is_unspecified(address.host):
        raise Problem("invalid_request", f"peer_address: {given!r} is no address at which others can reach a node")
    return PeerAddress(address.host, address.port)


def _http_address(given: str) -> str:
    with _invalid_requests():
        url = parse_url(given, "http_address")
    if _has_unspecified_host(url):
        raise Problem("invalid_request", f"http_address: {url!r} is no address at which others can reach a node")
    return url


@contextlib.contextmanager
def _invalid_requests() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise Problem("invalid_request", str(error)) from None


def _has_unspecified_host(url: str) -> bool:
    return is_unspecified(urlsplit(url).hostname or "")


def _node_id(request: web.Request) -> int:
    text = request.match_info["node_id"]
    if not (text.isascii() and text.isdigit() and len(text) <= NODE_ID_DIGITS_MAX):
        raise Problem("invalid_request", f"{text!r} is not a node id: a whole number")
    return int(text)
