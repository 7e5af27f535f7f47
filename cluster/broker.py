"""One node from start to stop: opens the data directory, wires the parts, serves, and hands leadership over at the end.

data directory -> store (index, commit log, hard state) -> Raft node -> services -> HTTP
"""

import asyncio
import contextlib
import errno
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from cluster.application import Services
from cluster.budgets.quotas import Quotas
from cluster.core.audit_trail import AuditTrail, streams_in
from cluster.core.core import Core
from cluster.core.log_reads import LogReads
from cluster.core.reader_threads import ReaderThreads
from cluster.guards import Guards
from cluster.http.listening import HttpServer, unavailable
from cluster.metrics import Metrics
from cluster.node_store import NodeStore
from cluster.process.addresses import ConfigError
from cluster.process.allowed_urls import AllowedUrls
from cluster.process.config import NodeConfig
from cluster.process.data_directory import DataDirectory, Identity
from cluster.process.exit_codes import ExitCode, StartupError, code_of_disk
from cluster.process.http_tls import http_tls, webhook_trust
from cluster.process.quota_file import read_quotas
from cluster.process.rebuild import decide, finish_rebuild, joins_since_rebuild
from cluster.process.trust import administrator_tokens, tls_files
from cluster.security.configured_issuer import issuer_of
from cluster.security.webhook_signer import WebhookSigner
from cluster.service_manager.notify_socket import NotifySocket
from cluster.service_manager.reporter import ServiceReporter
from cluster.telemetry.process import register_process
from cluster.transactions.webhooks import HttpWebhooks
from raft.config import AddressOverride, PeerAddress, RaftConfig
from raft.events import NodeEvents
from raft.health.clock import SYSTEM_CLOCK, Clock
from raft.node import RaftNode
from raft.peers.pem_files import TlsError
from raft.peers.secret import SecretError, read_peer_secrets
from store.errors import IndexDamaged
from store.features import LevelOf, UnknownFeatureLevel
from store.log.disk import PosixDisk
from store.log.errors import DiskError, DiskFull, LogError, disk_error

logger = logging.getLogger(__name__)

ID_PREFIX_BYTES: Final = 10
"""Number of random bytes at the beginning of every id of this process; no other process ever uses the same ones."""


class Broker:
    """Owns the parts of one node. Call `open`, then `serve` once, then `close`.

    `on_fatal` is called when going on could lose data; it must end the process.
    """

    def __init__(
        self,
        config: NodeConfig,
        data_directory: DataDirectory,
        on_fatal: Callable[[str], None],
        on_outdated: Callable[[str], None],
        clock: Clock,
        manager: NotifySocket,
        former: "Broker | None",
    ) -> None:
        """Open the store and wire the parts. Callers use `Broker.open`."""
        self.config = config
        self._data_directory = data_directory
        self._on_fatal = on_fatal
        self._http_tls = http_tls(config)
        finish_rebuild(data_directory)
        self._metrics = Metrics()
        self._opens_again = asyncio.Event()
        self._is_named = False
        self._store = opened = NodeStore(config, data_directory.path, self._metrics)
        opened.on_unreadable_index(on_fatal)
        self._state = opened.state
        events = NodeEvents(
            on_fatal,
            on_outdated,
            on_installed=self._opens_again.set,
            on_forgotten=self._begin_anew,
            on_feature_level=self._note_feature_level,
        )
        self._raft = RaftNode(raft_config(config, data_directory), opened.storage, events, clock)
        data_directory.belong_to(self._state.cluster_uid)
        if former is not None and former._raft.vital_signs.is_drained(config.node_id):
            self._raft.vital_signs.drain(drained=True)  # it opens again and was not started again
        self._raft.on_applied(self._note_cluster)
        self.core: Core = Core(
            config,
            self._raft,
            opened.state,
            opened.log,
            opened.waiters,
            self._metrics,
            self._log_reads(),
            on_fatal=on_fatal,
            clock=clock,
            id_prefix=secrets.token_hex(ID_PREFIX_BYTES),
            administrator_tokens=administrator_tokens(config),
            quotas=_quotas(config, clock, None if former is None else former.core.quotas),
            issuer=issuer_of(config) if former is None else former.core.access.issuer,
            audit=AuditTrail(
                streams_in(PosixDisk(), str(data_directory.path), config.audit_bytes),
                ReaderThreads("audit", threads=1),
                clock.wall_ms,
                clock.steady_s,
            ),
        )
        if self.core.quotas is not None:
            self._raft.use_weights(self.core.quotas.weight_of)
        self._metrics.add_gauges(self.core.audit.counters)
        self._signer: WebhookSigner = WebhookSigner(config, () if former is None else former._signer.secrets)
        webhooks = HttpWebhooks(
            AllowedUrls.of(config), self._signer, config.check_webhook_timeout_ms, clock.wall_ms, webhook_trust(config)
        )
        self.services = Services(self.core, webhooks, self._rebuild)
        register_process(self._metrics.registry)
        self._guards = Guards(
            self.core, self.services.alarms, opened.disk, data_directory.path, self._http_tls, self._signer
        )
        self._reporter = ServiceReporter(self.core, self.services.readiness, manager)

    @classmethod
    def open(
        cls,
        config: NodeConfig,
        on_fatal: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
        on_outdated: Callable[[str], None] | None = None,
        manager: NotifySocket | None = None,
        former: "Broker | None" = None,
    ) -> "Broker":
        """Claim the data directory and recover its content.

        `on_outdated` is called instead of `on_fatal` when another version has to be started. `manager` is told of the
        node's state; the caller closes it. `former` is the broker of the same configuration that this process has
        closed: its quotas and webhook secrets are kept, and an error is logged, when their files cannot be used now.
        Raises StartupError, which says what to do, when the directory cannot be claimed or recovered.
        """
        directory = DataDirectory.open(Path(config.data_dir), Identity(config.cluster_id, config.node_id))
        try:
            with _startup_errors(config):
                return cls(
                    config, directory, on_fatal, on_outdated or on_fatal, clock, manager or NotifySocket(""), former
                )
        except BaseException:
            directory.close()
            raise

    async def serve(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> bool:
        """Serve until `stop` is set, then hand leadership over, answer requests under way, and close the connections.

        Returns True when serving ended before `stop`, because the node starts again from a snapshot or as a new disk:
        once this broker is closed, another one has to be opened. Raises StartupError when an address is not available.
        """
        servers = self._bind()
        try:
            for each in servers:
                await each.prepare()
            await self._start_raft()
        except BaseException:
            await _end(servers)
            raise
        self.services.start()
        self._guards.start()
        for each in servers:
            await each.serve(self._http_tls)
        self._reporter.start()
        on_ready()
        await _first_of(stop, self._opens_again)
        await self._reporter.stop(opens_again=not stop.is_set())
        await self._leave(servers)
        return not stop.is_set()

    async def look_at_certificates(self) -> None:
        """Use the TLS files for new connections if they were replaced, without waiting for the next round."""
        await self._guards.certificates.look()

    def close(self) -> None:
        """Flush the index, sync the log and close all files. Raises LogFailed when the log cannot be synced."""
        try:
            self._store.close()
        finally:
            self._data_directory.close()

    def _log_reads(self) -> LogReads:
        return LogReads(
            self._store.log,
            PosixDisk(),  # without the spare descriptors, which are the log's own
            ReaderThreads(),
            self._metrics,
            bytes_per_s=self.config.cold_read_bytes_per_s,
            on_fatal=self._on_fatal,
        )

    def _note_feature_level(self, found: LevelOf) -> None:
        """Note the feature level in the data directory, before the record that enables it is written to the log.

        Raises DiskFull when there is no room: the record is not written then and comes again.
        """
        try:
            self._data_directory.note_feature_level(found)
        except StartupError as error:
            if _is_for_want_of_room(error):
                raise DiskFull("write", str(self._data_directory.path), errno.ENOSPC, str(error)) from error
            self._on_fatal(str(error))

    def _note_cluster(self) -> None:
        """Note the cluster's uid in the data directory, once: the first entry of a cluster names it."""
        if self._is_named or not self._state.cluster_uid:
            return
        try:
            self._data_directory.belong_to(self._state.cluster_uid)
            self._is_named = True
        except StartupError as error:
            if not _is_for_want_of_room(error):
                self._on_fatal(str(error))
            logger.debug("cannot note the cluster: %s", error)  # the next entry that is applied tries again

    def _begin_anew(self) -> None:
        """Take a new incarnation and start again: this disk was put back to an earlier state, and the other nodes must
        treat it as a new disk.
        """
        try:
            self._data_directory.renew()
        except StartupError as error:
            self._on_fatal(str(error))
        self._opens_again.set()

    def _rebuild(self, joins: bool) -> None:
        """Decide durably to rebuild this node, then fall silent: its copy is not used or promised from here on."""
        decide(self._data_directory.path, joins=joins)
        self._raft.fall_silent(self._opens_again.set)

    def _bind(self) -> list[HttpServer]:
        """Bind the addresses of the HTTP API. Raises StartupError when one is not available."""
        services, core = self.services, self.core
        servers = [HttpServer("http_listen", self.config.http_address(), core.connections, services.make_runner())]
        address, connections = self.config.admin_address(), core.admin_connections
        if address is not None and connections is not None:
            runner = services.make_runner(services.administration)
            try:
                servers.append(HttpServer("admin_listen", address, connections, runner))
            except StartupError:
                servers[0].close()
                raise
        return servers

    async def _start_raft(self) -> None:
        try:
            with _startup_errors(self.config):  # of the sync that proves how the log is synced
                await self._raft.start()
        except OSError as error:
            raise unavailable("peer_listen", self.config.peer_address(), error) from None

    async def _leave(self, servers: Sequence[HttpServer]) -> None:
        logger.info("stopping: handing over")
        await self._guards.stop()
        await self.services.leave()
        for each in servers:
            each.close()
        await _end(servers)
        self.core.reads.stop()
        await self.core.audit.stop()
        self._guards.stop_watching()


def raft_config(config: NodeConfig, data_directory: DataDirectory) -> RaftConfig:
    """Return the configuration of the Raft node. Raises StartupError when the peer secret cannot be read."""
    listen = config.peer_address()
    nodes = config.nodes()
    advertised = nodes[config.node_id].address
    override = None
    if config.override_addresses:
        override = AddressOverride(
            config.override_addresses,
            {node_id: PeerAddress(peer.address.host, peer.address.port) for node_id, peer in nodes.items()},
            {node_id: peer.url for node_id, peer in nodes.items()},
        )
    joins = joins_since_rebuild(data_directory.path)
    if config.join or joins:
        nodes = {}  # the log names them
    return RaftConfig(
        cluster_id=config.cluster_id,
        node_id=config.node_id,
        listen=PeerAddress(listen.host, listen.port),
        peers={
            node_id: PeerAddress(peer.address.host, peer.address.port)
            for node_id, peer in nodes.items()
            if node_id != config.node_id
        },
        urls={node_id: peer.url for node_id, peer in nodes.items()},
        advertised=PeerAddress(advertised.host, advertised.port),
        joins=joins or config.join is not None,
        serves_peers=config.serves_peers(),
        election_timeout_ms=config.election_timeout_ms,
        heartbeat_ms=config.heartbeat_ms,
        max_clock_skew_ms=config.max_clock_skew_ms,
        max_in_flight_bytes=config.max_in_flight_bytes,
        retain_behind_bytes=config.retain_behind_bytes,
        incarnation=data_directory.incarnation,
        cluster_uid=data_directory.cluster_uid,
        peer_secrets=_read_secrets(config),
        tls=tls_files(config),
        override=override,
    )


async def _end(servers: Sequence[HttpServer]) -> None:
    """Close all servers at the same time: each may wait HTTP_SHUTDOWN_TIMEOUT_S for its requests."""
    await asyncio.gather(*(each.end() for each in servers))


def _is_for_want_of_room(error: StartupError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and isinstance(disk_error("write", "", cause), DiskFull)


def _quotas(config: NodeConfig, clock: Clock, former: Quotas | None) -> Quotas | None:
    """Return the quotas of the file; None without one. Raises ConfigError, unless there are former settings to keep."""
    if config.quota_file is None:
        return None
    try:
        settings = read_quotas(config.quota_file)
    except ConfigError as error:
        if former is None:
            raise
        logger.error("the node goes on with the former quotas: %s", error)
        settings = former.settings
    return Quotas(settings, clock.steady_s)


def _read_secrets(config: NodeConfig) -> tuple[bytes, ...]:
    if config.peer_secret_file is None:
        return ()
    try:
        return read_peer_secrets(Path(config.peer_secret_file))
    except SecretError as error:
        raise StartupError(ExitCode.BAD_CONFIG, f"peer_secret_file {error}") from None


@contextlib.contextmanager
def _startup_errors(config: NodeConfig) -> Iterator[None]:
    """Translate errors of TLS files, and the store's about a damaged or unusable disk, into StartupError with an exit
    code.
    """
    try:
        yield
    except DiskError as error:
        raise StartupError(code_of_disk(error.errno), f"data_dir {config.data_dir}: {error}") from error
    except (ConfigError, TlsError) as error:  # a file may have been replaced since the process started
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    except UnknownFeatureLevel as error:
        raise StartupError(ExitCode.WRONG_VERSION, f"data_dir {config.data_dir}: {error}") from error
    except (LogError, IndexDamaged) as error:
        raise StartupError(ExitCode.LOG_CORRUPT, str(error)) from error


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()
