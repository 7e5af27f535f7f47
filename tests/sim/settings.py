"""Configuration of all nodes of one seed."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.process.config import NodeConfig
from raft.config import PeerAddress

from .addresses import peer_address, url
from .log_cuts import CutSettings
from .service_settings import ServiceSettings

WEBHOOKS_URL = "http://hooks/"
"""The URL that the webhooks of all groups begin with."""


@dataclass(frozen=True)
class Settings:
    """Configuration of all nodes of one seed."""

    node_count: int = 3
    spare_count: int = 0
    """Empty nodes beside them that operators may add."""
    election_timeout_ms: int = 300
    heartbeat_ms: int = 50
    segment_bytes: int = 16 * 1024
    cache_bytes: int = 8 * 1024
    flush_entries: int = 40
    apply_cost_us: int = 0
    """Applying an entry takes as long."""
    max_clock_skew_ms: int = 10_000
    max_entries_in_flight: int = 4
    max_entry_bytes: int = 2 * 1024
    max_in_flight_bytes: int = 64 * 1024 * 1024
    cuts: CutSettings | None = None
    """Settings for cutting logs from the front; None if they are not cut."""
    services: ServiceSettings = field(default_factory=ServiceSettings)

    @property
    def founders(self) -> range:
        """The ids of the nodes that the cluster begins with."""
        return range(1, self.node_count + 1)

    def peers_of(self, node_id: int) -> dict[int, PeerAddress]:
        """Return the addresses of the other founders, as a founder is told them."""
        return {peer: peer_address(peer) for peer in self.founders if peer != node_id}

    def node_config(self, node_id: int, node_ids: Iterable[int]) -> NodeConfig:
        """Return the configuration for the services. Its other fields are for parts that are simulated, or configured
        otherwise.
        """
        services = self.services
        return NodeConfig(
            cluster_id="simulated",
            node_id=node_id,
            peers=tuple(f"{peer}=simulated:{peer}={url(peer)}" for peer in node_ids),
            request_timeout_ms=services.request_timeout_ms,
            check_immunity_ms=services.check_immunity_ms,
            check_interval_ms=services.check_interval_ms,
            check_max=services.check_max,
            check_webhook_timeout_ms=services.webhook_timeout_ms,
            webhook_allow=(WEBHOOKS_URL,),
            retention_check_ms=services.retention_check_ms,
        )
