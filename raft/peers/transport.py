"""TCP between peers: two connections for each direction, one per lane (raft/peers/lanes.py), opened by the sender.

A connection starts with a handshake (raft/peers/handshake.py). A node never reaches the handlers (row 9) if it is of
another cluster, does not know the secret, means another node, or is not in the configuration and cannot know a later
one. A node that knows a later configuration may be its leader: it is heard, and dialled at the address it gives.
Sending never blocks and may drop messages: Raft repeats those that matter.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import get_args

import msgspec

from raft.config import PeerAddress, RaftConfig
from raft.errors import ProtocolError
from raft.feature_levels import own_build, refusal_of_build
from raft.library import PeerNode, PeerTransport
from raft.membership import Membership
from raft.messages import (
    MAX_FRAME_BYTES,
    Append,
    Arrived,
    Build,
    Challenge,
    Handshake,
    Hello,
    Message,
    Proof,
    Welcome,
    encode,
)
from raft.peers.frames import FrameProtocol
from raft.peers.handshake import HANDSHAKE_FRAME_BYTES, PROTOCOL, Admission, Opening, Refusal, make_nonce
from raft.peers.lanes import CONTROL, DATA, lane_of
from raft.peers.outgoing import Arriving, LanedSender, Outgoing, SharedEncoding
from raft.peers.redialling import Pauses
from raft.peers.refusals import Refusals
from raft.peers.sockets import Listener, dial, keep_alive
from raft.peers.tls import NAME_CHARACTERS_MAX, PeerTls
from raft.peers.whereabouts import Whereabouts, is_reachable
from raft.peers.who_answers import check_answers
from store.features import UnknownFeatureLevel

log = logging.getLogger(__name__)

_OUT_OF_PLACE = (*get_args(Handshake), Arrived)
"""Messages that no welcomed connection carries to the handlers."""
HANDSHAKE_TIMEOUT_MS = 5_000
TLS_CONNECT_TIMEOUT_MS = 3_000
"""Replaces CONNECT_TIMEOUT_MS under TLS: several round trips, each behind the queue of a slow link."""
CONNECT_TIMEOUT_MS = 1_000
"""A new attempt begins with a new packet. The kernel repeats the old one ever more rarely, so that a network that is
whole again would wait for the repetition.
"""
DIALLING_ERRORS = (OSError, TimeoutError, ProtocolError, UnicodeError)
"""Errors that dialling may meet (UnicodeError if a host is no name); others are bugs, and logged with their trace."""
RECONNECT_MS = 200
REMOVED_RECONNECT_MS = 2_000
"""Milliseconds between attempts of a removed node, which keeps asking, but rarely, whether it is wanted again."""
HANDSHAKES_MAX = 64
"""Maximum number of connections in the handshake; beyond it the oldest is closed."""
REFUSED_MAX = 64
"""Maximum number of nodes whose last refusal is remembered."""


class TcpTransport(LanedSender, PeerTransport):
    """Hands messages of handshaken peers to the callback PySyncObj has set, on the loop.

    `set_membership` must be called before any other method.
    """

    def __init__(self, config: RaftConfig) -> None:
        """Create the transport without a connection. Raises TlsError when the files of its TLS cannot be used."""
        super().__init__(None, None, None)
        self._config = config
        self._membership: Membership | None = None
        self._addresses: dict[int, PeerAddress] = {}
        self.cluster_uid: Callable[[], str] = lambda: config.cluster_uid
        """Returns the name of the cluster that this node belongs to."""
        self.removed_by: int | None = None
        """The node that last said that this one was removed from the cluster; None once this node is a member again."""
        self._peers: dict[int, PeerNode] = {}
        self.outgoing: dict[int, Outgoing] = {}
        self._encode_data = SharedEncoding()
        self._builds: dict[int, Build] = {}  # per peer, its build when it was last connected
        self.on_outdated: Callable[[UnknownFeatureLevel], None] = lambda _: None
        """Called when a peer's cluster is at a level at which this build does not work."""
        self._incoming: set[FrameProtocol] = set()
        self._strangers: dict[FrameProtocol, None] = {}  # incoming, in the handshake; the oldest first
        self._senders: dict[int, dict[int, FrameProtocol]] = {}  # per peer and lane, the incoming connection it uses
        self.on_data_arrives: Callable[[int], int | None] = lambda peer: None
        """Called with the peer whose data is arriving; returns the term for the answer, or None for no answer."""
        self.tls = PeerTls(config.tls, config.cluster_id, config.node_id) if config.tls else None
        """What this node shows its peers, and expects of them; None without TLS."""
        self._refusals = Refusals()
        self._listener = Listener(self._accept, self.tls, self._refusals)
        self._dialers: dict[int, asyncio.Task[None]] = {}
        self._pauses = Pauses()
        self._dialled: dict[int, PeerAddress] = {}
        self._guests: dict[int, PeerAddress] = {}  # nodes outside the configuration that are heard
        self._whereabouts = Whereabouts()
        self._refused: dict[int, str] = {}
        self._failures: dict[int, str] = {}  # per peer, why the last attempt to reach it failed
        self._started = False

    async def start(self) -> None:
        """Listen, and start dialling. Raises OSError when the address cannot be bound."""
        self._started = True
        if self._config.serves_peers:
            await self._listener.open(self._config.listen)
        self._dial_members()

    async def stop(self) -> None:
        self._started = False
        dialers = list(self._dialers.values())
        for dialer in dialers:
            dialer.cancel()
        await asyncio.gather(*dialers, return_exceptions=True)
        await self._listener.close()
        for outgoing in list(self.outgoing.values()):
            outgoing.close()
        for connection in list(self._incoming):
            connection.close()

    def set_membership(self, membership: Membership) -> None:
        """Take over the membership; called again whenever it changes. Connections to new nodes are opened; those of
        removed nodes are closed as soon as the removal is committed.
        """
        self._membership = membership
        self._addresses = membership.addresses
        self._addresses.pop(self._config.node_id, None)
        for member in membership.settled.configuration.members:  # what is not committed may be taken back
            self._guests.pop(member.node_id, None)
        if membership.current.find(self._config.node_id) is not None:
            self.removed_by = None
        for peer in [*self._senders]:
            if membership.is_stranger(peer, membership.settled.index) and peer not in self._guests:
                for connection in self._senders.pop(peer).values():
                    connection.abort()
        self._dial_members()

    def _dial_members(self) -> None:
        if not self._started:
            return
        wanted = {**self._guests, **self._addresses}
        for peer in [*self._dialers]:
            if self._dialled.get(peer) != wanted.get(peer):
                self._dialers.pop(peer).cancel()
                del self._dialled[peer]
                self._failures.pop(peer, None)
        for peer, address in wanted.items():
            if peer not in self._dialers:
                self._dialled[peer] = address
                self._dialers[peer] = asyncio.create_task(self._keep_dialling(peer, address))

    def _node(self, peer: int) -> PeerNode:
        return self._peers.setdefault(peer, PeerNode(peer))

    def is_connected(self, peer: int) -> bool:
        return peer in self.outgoing

    def why_unconnected(self, peer: int) -> str:
        """Return in words why the last attempt of either side failed; empty while there is nothing to say."""
        return "" if peer in self.outgoing else self._refused.get(peer) or self._failures.get(peer, "")

    def build_of(self, peer: int) -> Build | None:
        """Return the build that a connected peer has announced; None while the peer is not connected."""
        return self._builds[peer] if peer in self.outgoing else None

    def last_build_of(self, peer: int) -> Build | None:
        """Return the build that a peer announced when it was last connected to this process; None if it never was."""
        return self._builds.get(peer)

    def send(self, peer: int, message: Message | Append) -> bool:
        """Return whether the message was handed to its lane; the payloads stay the caller's, unchanged until sent."""
        return self.send_by(lane_of(message), peer, message)

    async def check_answers(self, node_id: int, address: PeerAddress) -> None:
        """Raise OSError, TimeoutError or ProtocolError unless that node of this cluster answers at the address."""
        hello = msgspec.structs.replace(self._hello(node_id, CONTROL), node_id=node_id)
        await check_answers(self._config, hello, address, self.tls)

    def destroy(self) -> None:
        """Do nothing: PySyncObj calls this at its end, but `stop` does the work."""

    # --- outgoing ----------------------------------------------------------------------------------------------

    async def _keep_dialling(self, peer: int, address: PeerAddress) -> None:
        failures, told = 0, dict[PeerAddress, str]()
        while True:
            at = self._whereabouts.choose(peer, address, failures)
            try:
                await self._dial(peer, at)
                failures, told = 0, {}
            except UnknownFeatureLevel as error:
                self.on_outdated(error)
                return
            except Exception as error:  # any error: no other task dials this node
                failures += 1
                failure = self._failures[peer] = str(error) or type(error).__name__
                if told.get(at) != failure:  # once per place and reason, not five times a second
                    trace = None if isinstance(error, DIALLING_ERRORS) else error
                    log.warning(
                        "no connection to node %d at %s:%d: %s", peer, at.host, at.port, failure, exc_info=trace
                    )
                told = {**(told if at == address or address in told else {}), at: failure}
            await self._pauses.last(peer, (REMOVED_RECONNECT_MS if self.removed_by == peer else RECONNECT_MS) / 1000)

    async def _dial(self, peer: int, address: PeerAddress) -> None:
        """Connect both lanes; returns when either of them has ended."""
        async with (
            self._opened(peer, address, CONTROL) as (control, welcome),
            self._opened(peer, address, DATA) as (data, again),
        ):
            if again.incarnation != welcome.incarnation:
                raise ProtocolError(f"the two lanes to node {peer} reached different disks")
            node = self._node(peer)
            outgoing = Outgoing(
                control,
                data,
                self._config.election_timeout_ms,
                welcome.build.level_max,
                lambda sign: self.hand_over(node, sign),
                self._encode_data,
            )
            self.outgoing[peer], self._builds[peer] = outgoing, welcome.build
            node.incarnation = welcome.incarnation
            try:
                log.info("connected to node %d", peer)
                if self.tls is not None:
                    self.tls.reached(peer, control, self._addresses, self._incoming)
                self.tell_connected(node)
                await asyncio.wait((control.closed, data.closed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                outgoing.close()
                if self.outgoing.get(peer) is outgoing:
                    del self.outgoing[peer]
                    self.tell_disconnected(node)

    @contextlib.asynccontextmanager
    async def _opened(self, peer: int, address: PeerAddress, lane: int) -> AsyncIterator[tuple[FrameProtocol, Welcome]]:
        """Yield a connection that was welcomed, and close it at the end of the context."""
        hello = self._hello(peer, lane)
        opening = Opening(self._config, hello)
        welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

        def on_message(connection: FrameProtocol, message: Message | Append) -> None:
            if isinstance(message, Challenge) and not welcomed.done():
                connection.write(encode(opening.prove(message)))
            elif isinstance(message, Welcome) and not welcomed.done():
                welcomed.set_result(message)
            else:
                raise ProtocolError("a peer may send only its part of the handshake on a connection to it")

        async with asyncio.timeout((TLS_CONNECT_TIMEOUT_MS if self.tls else CONNECT_TIMEOUT_MS) / 1000):
            connection = await dial(lambda: FrameProtocol(on_message, HANDSHAKE_FRAME_BYTES), address, self.tls, peer)
        try:
            keep_alive(connection, lane)
            connection.write(encode(hello))
            yield connection, await self._await_welcome(peer, connection, opening, welcomed)
        finally:
            connection.close()

    def _hello(self, peer: int, lane: int) -> Hello:
        own, membership = self._config, self._membership
        assert membership is not None
        member, address = membership.find(own.node_id), own.advertised or own.listen
        if member is not None and not is_reachable(address):
            address = member.address
        return Hello(
            own.cluster_id,
            own.node_id,
            peer,
            PROTOCOL,
            own.incarnation,
            f"{address.host}:{address.port}",
            membership.index,
            self.cluster_uid(),
            lane,
            make_nonce(),
            own_build(),
        )

    async def _await_welcome(
        self, peer: int, connection: FrameProtocol, opening: Opening, welcomed: asyncio.Future[Welcome]
    ) -> Welcome:
        connection.closed.add_done_callback(lambda _: welcomed.cancel())
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_MS / 1000):
                welcome = await welcomed
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connection.closed.done() and not (task is not None and task.cancelling()):
                why = "; its log says whether it refuses this node's certificate" if self.tls else ""
                raise ProtocolError(f"the peer closed the connection during the handshake{why}") from None
            raise
        try:
            opening.accept(welcome)
        except Refusal as refusal:
            if refusal.removed:
                if self.removed_by is None:
                    log.error("node %d says that this node was removed from the cluster; stop this node", peer)
                self.removed_by = peer
            raise
        assert self._membership is not None
        refusal_here = refusal_of_build(welcome.build, self._membership.settled.configuration.level, peer)
        if refusal_here:
            raise ProtocolError(refusal_here)
        return welcome

    # --- incoming ----------------------------------------------------------------------------------------------

    def _accept(self) -> FrameProtocol:
        connection = FrameProtocol(self._on_hello, HANDSHAKE_FRAME_BYTES)
        self._incoming.add(connection)
        self._strangers[connection] = None
        if len(self._strangers) > HANDSHAKES_MAX:
            self._drop(next(iter(self._strangers)))
        loop = asyncio.get_running_loop()
        connection.handshake_timer = loop.call_later(HANDSHAKE_TIMEOUT_MS / 1000, self._drop, connection)
        connection.closed.add_done_callback(lambda _: self._forget(connection))
        if not self._started:  # the kernel accepted it before the stop
            connection.close()
        return connection

    def _drop(self, connection: FrameProtocol) -> None:
        self._strangers.pop(connection, None)
        connection.abort()

    def _forget(self, connection: FrameProtocol) -> None:
        self._incoming.discard(connection)
        self._is_known(connection)

    def _is_known(self, connection: FrameProtocol) -> None:
        """Note that the handshake of the connection is over."""
        self._strangers.pop(connection, None)
        if connection.handshake_timer is not None:
            connection.handshake_timer.cancel()

    def _on_hello(self, connection: FrameProtocol, message: Message | Append) -> None:
        if not isinstance(message, Hello):
            raise ProtocolError("the first message on a connection must be Hello")
        if self.tls is not None and not self._is_certified(self.tls, connection, message):
            connection.abort()
            return
        admission = Admission(self._config, message)
        if not admission.is_understood:
            self._refuse(connection, message, admission.refuse_version())
            return
        connection.write(encode(admission.challenge))
        connection.on_message = lambda _, answer: self._on_proof(connection, admission, answer)

    def _is_certified(self, tls: PeerTls, connection: FrameProtocol, hello: Hello) -> bool:
        """Return whether the certificate names the node that the hello claims. Otherwise the reason is logged here, and
        nothing of it may be told to the other side.
        """
        checks_address = hello.node_id == self._config.node_id  # by who_answers.py: such a node is never admitted
        try:
            tls.check(connection, None if checks_address else hello.node_id)
            if hello.cluster_id != self._config.cluster_id:
                raise ProtocolError(f"it claims to be of cluster {hello.cluster_id[:NAME_CHARACTERS_MAX]!r}")
        except ProtocolError as error:
            self._refusals.note(f"a connection in the name of node {hello.node_id}: {error}")
            return False
        return True

    def _on_proof(self, connection: FrameProtocol, admission: Admission, message: Message | Append) -> None:
        if not isinstance(message, Proof):
            raise ProtocolError("the answer to a challenge must be Proof")
        assert self._membership is not None
        hello = admission.hello
        welcome = admission.answer(message, self._membership, self.cluster_uid())
        if welcome.refusal:
            self._refuse(connection, hello, welcome)
            return
        connection.write(encode(welcome))
        self._refused.pop(hello.node_id, None)
        self._is_known(connection)
        if self.tls is not None:
            self.tls.heard(hello.node_id, connection)
        keep_alive(connection, hello.lane)
        connection.max_frame_bytes = MAX_FRAME_BYTES
        peer = self._node(hello.node_id)
        self._supersede(peer.id, hello.lane, connection)
        if hello.lane == DATA:
            connection.on_bytes = Arriving(connection, lambda: self.on_data_arrives(peer.id))
        else:
            self._locate(peer.id, hello.address, connection)
            self._pauses.end(peer.id)
        connection.on_message = lambda _, received: self._deliver(peer, hello.incarnation, received)

    def _locate(self, peer: int, address: str, connection: FrameProtocol) -> None:
        """Note the address that the peer announces; it counts as long as the connection stands."""
        said = self._whereabouts.hear(peer, address, connection)
        connection.closed.add_done_callback(lambda _: self._whereabouts.forget(peer, connection))
        if peer not in self._addresses and said is not None:
            self._welcome_guest(peer, said, connection)

    def _refuse(self, connection: FrameProtocol, hello: Hello, welcome: Welcome) -> None:
        connection.write(encode(welcome))
        self._log_refusal(hello.node_id, welcome.refusal)
        connection.close()

    def _log_refusal(self, node_id: int, refusal: str) -> None:
        """Log the refusal once per node and reason, since the node asks again for ever."""
        if self._refused.get(node_id) != refusal:
            log.warning("refused a peer connection: %s", refusal)
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused[node_id] = refusal

    def _welcome_guest(self, peer: int, address: PeerAddress, connection: FrameProtocol) -> None:
        """Dial a node that is not in the configuration here, as long as its own connection stands, and for one more
        handshake: a node that finds this one too old closes at once, and says so only to whoever dials it.
        """
        self._guests[peer] = address
        self._dial_members()

        def leaves(_: object) -> None:
            if self._senders.get(peer, {}).get(CONTROL) is connection:
                self._senders.pop(peer)
                asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_MS / 1000, forget)

        def forget() -> None:
            if CONTROL not in self._senders.get(peer, {}) and self._guests.get(peer) == address:
                del self._guests[peer]
                self._dial_members()

        connection.closed.add_done_callback(leaves)

    def _supersede(self, peer: int, lane: int, connection: FrameProtocol) -> None:
        """Abort the earlier connections of a peer that dials anew, control first: messages still in them are stale."""
        senders = self._senders.setdefault(peer, {})
        for earlier in (CONTROL, DATA) if lane == CONTROL else (DATA,):
            if earlier in senders:
                senders.pop(earlier).abort()
        senders[lane] = connection

    def _deliver(self, peer: PeerNode, incarnation: str, message: Message | Append) -> None:
        if isinstance(message, _OUT_OF_PLACE):
            if isinstance(message, Arrived):
                raise ProtocolError("the peer reports arrived bytes on a connection by which none were sent")
            raise ProtocolError("the peer sent a message of the handshake after the handshake")
        if getattr(peer, "incarnation", incarnation) != incarnation:
            return  # from a lost disk, or one without a Welcome yet
        self.hand_over(peer, message)
