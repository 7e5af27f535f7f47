"""Tests that only the node's user may read the data directory, which holds everybody's messages."""

import os
import stat
from pathlib import Path

import pytest

from tests.e2e.cluster_process import ClusterProcess

pytestmark = pytest.mark.process


def modes(directory: Path) -> set[int]:
    found = [directory, *directory.rglob("*")]
    return {stat.S_IMODE(path.stat().st_mode) for path in found}


def test_files_and_directories_are_for_the_nodes_user_only(tmp_path: Path) -> None:
    before = os.umask(0)  # the node inherits it
    try:
        with ClusterProcess(tmp_path, nodes=1) as running:
            node = running.wait_leader()
            assert node.request("PUT", "/v1/topics/private", payload={"queues": 1}).status == 201
            assert node.terminate() == 0
            assert modes(node.data_dir) == {0o600, 0o700}
            node.data_dir.chmod(0o755)  # as an earlier version left it
            node.start()
            running.wait_leader()
            assert stat.S_IMODE(node.data_dir.stat().st_mode) == 0o700
    finally:
        os.umask(before)
