"""The cluster of the end-to-end tests fails at once when its nodes have ended, and says why they did."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cluster_process import OPTIONS, ClusterProcess

ENDED = r"(?s)node 1 ended with 2\n.*unrecognized arguments: --no-such-option"


@pytest.mark.parametrize(
    "wait", [ClusterProcess.wait_ready, ClusterProcess.wait_leader, ClusterProcess.wait_same_state]
)
def test_a_cluster_whose_nodes_have_ended_is_not_waited_for(
    wait: Callable[[ClusterProcess], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.e2e.cluster_process.PATIENCE_S", 10.0)
    cluster = ClusterProcess(tmp_path, nodes=1, options=(*OPTIONS, "--no-such-option"))
    cluster.start()
    try:
        with pytest.raises(RuntimeError, match=ENDED):
            wait(cluster)
    finally:
        cluster.stop()
