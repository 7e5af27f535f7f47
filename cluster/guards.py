"""Guards of a running node: they watch its disk, loop and sealed segments, and the files that operators replace."""

from pathlib import Path

from cluster.background.scrubber import Scrubber
from cluster.core.core import Core
from cluster.core.reader_threads import ReaderThreads
from cluster.health.alarms import Alarms
from cluster.health.certificate_guard import CertificateGuard
from cluster.health.descriptor_guard import DescriptorGuard
from cluster.health.disk_guard import DiskGuard
from cluster.health.issuer_guard import IssuerGuard
from cluster.health.loop_watch import LoopWatch
from cluster.health.quorum_watch import QuorumWatch
from cluster.health.quota_guard import QuotaGuard
from cluster.health.webhook_secret_guard import WebhookSecretGuard
from cluster.process.http_tls import HttpTls
from cluster.security.webhook_signer import WebhookSigner
from cluster.telemetry.process import GcPauses
from store.log.disk import PosixDisk


class Guards:
    """Owns the guards of one node. Each of them raises its own alarms. Use on the event loop only."""

    def __init__(
        self, core: Core, alarms: Alarms, disk: PosixDisk, path: Path, http_tls: HttpTls | None, signer: WebhookSigner
    ) -> None:
        self.disk = DiskGuard(core, disk, str(path))
        self.descriptors = DescriptorGuard(core, disk.spares)
        self.loop = LoopWatch(core)
        self.quorum = QuorumWatch(core)
        self.scrubber = Scrubber(core, PosixDisk(), ReaderThreads("scrubber", threads=1))
        self.certificates = CertificateGuard(core, http_tls, ReaderThreads("certificates", threads=1))
        self.webhook_secrets = WebhookSecretGuard(core, signer, ReaderThreads("webhook-secrets", threads=1))
        self.quotas = QuotaGuard(core, ReaderThreads("quotas", threads=1))
        self.issuer = IssuerGuard(core, ReaderThreads("issuer-keys", threads=1))
        self._gc_pauses = GcPauses()
        core.metrics.add_gauges(self._gc_pauses.metrics)
        self._files = (self.certificates, self.webhook_secrets, self.quotas, self.issuer)
        for guard in (self.disk, self.descriptors, self.loop, self.scrubber, *self._files):
            alarms.add(guard.conditions)

    def start(self) -> None:
        self.disk.start()
        self.descriptors.start()
        self.loop.start()
        self.quorum.start()
        self._gc_pauses.start()
        self.scrubber.start()
        for guard in self._files:
            guard.start()

    async def stop(self) -> None:
        """Stop all guards but the watches of the loop while the node leaves."""
        for guard in reversed(self._files):
            await guard.stop()
        await self.scrubber.stop()
        await self.quorum.stop()
        await self.descriptors.stop()
        await self.disk.stop()

    def stop_watching(self) -> None:
        """Stop the rest, when nothing else of the node runs any more."""
        self.loop.stop()
        self._gc_pauses.stop()
