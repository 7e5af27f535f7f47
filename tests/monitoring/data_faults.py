"""Faults of files that a node keeps in its data directory, or is given."""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from cluster.process.data_directory import BACKUP_FILE, IDENTITY_FILE
from tests.e2e.cluster_process import NodeProcess, wait_for
from tests.monitoring.examination import COMMAND
from tests.monitoring.faults import QUOTAS, Faults, empty
from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY
from tests.rewrite import rewrite_record

OLD_MS: Final = 27 * 3_600_000
"""Age of a backup, in ms, that is too old: 26 hours are allowed."""
LATER: Final = 20
"""Number of messages that a disk lacks once it was put back."""


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


@contextlib.contextmanager
def put_back(faults: Faults) -> Iterator[None]:
    """Put the disk of one node back to an earlier state while the only other one that could fill it is down too."""
    cluster = faults.cluster
    node = cluster.follower()
    copy = cluster.directory / "copy"
    node.terminate()
    shutil.copytree(node.data_dir, copy)
    faults.start(node)
    for _ in range(LATER):
        faults.send()
    cluster.wait_same_state()
    down = next(each for each in cluster.alive() if each not in (node, cluster.wait_leader()))
    for each in (node, down):
        each.kill()
    empty(node.data_dir)
    shutil.copytree(copy, node.data_dir, dirs_exist_ok=True)
    shutil.rmtree(copy)
    node.start()
    yield
    faults.start(down)
    faults.commit(faults.end_of_queue())


@contextlib.contextmanager
def differs(faults: Faults) -> Iterator[None]:
    """Change an entry of one node, as a bit that flips in memory does, and have the node rebuilt."""
    cluster = faults.cluster
    for _ in range(LATER):
        faults.send()
    cluster.wait_same_state()
    node = cluster.follower()
    status = node.status()
    assert status is not None
    node.terminate()
    rewrite_record(max((node.data_dir / "log").glob("*.log")), status["applied_index"] - 5)
    node.start()
    yield
    path = f"/v1/cluster/rebuild?node_id={node.node_id}"
    wait_for(lambda: node.request("POST", path).status == 200, "the rebuild to be taken")
    wait_for(lambda: _is_sound(node), "the node to be filled")
    cluster.wait_ready()
    faults.commit(faults.end_of_queue())


def _is_sound(node: NodeProcess) -> bool:
    status = node.status()
    return status is not None and bool(status["replica"]) and not status["replica"]["differs"] and node.ready()
