"""Faults of files that a node keeps in its data directory, or is given."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from cluster.process.data_directory import BACKUP_FILE, IDENTITY_FILE
from tests.monitoring.examination import COMMAND
from tests.monitoring.faults import QUOTAS, Faults
from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY

OLD_MS: Final = 27 * 3_600_000
"""Age of a backup, in ms, that is too old: 26 hours are allowed."""


@contextlib.contextmanager
def old_backup(faults: Faults) -> Iterator[None]:
    """Have a node know, after a restart, of a backup of yesterday, and of none since."""
    node = faults.cluster.follower()
    node.terminate()
    uid = json.loads((node.data_dir / IDENTITY_FILE).read_text())["cluster_uid"]
    at_ms = int(time.time() * 1000) - OLD_MS
    (node.data_dir / BACKUP_FILE).write_text(json.dumps({"at_ms": at_ms, "bytes": 1, "index": 1, "cluster_uid": uid}))
    faults.start(node)
    yield
    place = str(faults.cluster.directory / "now.backup")
    command = [*COMMAND, "backup", "create", place, "--node", node.url, "--servers", node.url]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=PATIENCE_S)


@contextlib.contextmanager
def broken_quotas(faults: Faults) -> Iterator[None]:
    """Replace the file of quotas of a running node by one with a mistake, and mend it."""
    file = faults.quotas_of(faults.cluster.follower())
    file.write_text(QUOTAS + "requests_per_second = 5\n")
    yield
    file.write_text(QUOTAS)
