"""`--join`: who may begin without knowing the nodes that the cluster began with."""

import pytest

from cluster.config import NodeConfig
from cluster.exit_codes import StartupError
from cluster.join import _Cluster, _Node, _of

NODES = (_Node(1), _Node(2))


@pytest.mark.parametrize(("configuration_index", "commit_index"), [(0, 100), (9, 8)])
def test_a_founder_does_not_join_while_the_log_may_say_nothing_of_the_nodes(
    configuration_index: int, commit_index: int
) -> None:
    """What is not committed may be cut off, and a node with a new disk would never know who else is there."""
    cluster = _Cluster("orders", configuration_index, commit_index, NODES)
    with pytest.raises(StartupError, match="same --peer options"):
        _of(NodeConfig(node_id=2, join="http://h:1"), cluster)
    assert _of(NodeConfig(node_id=3, join="http://h:1"), cluster) == "orders"


def test_a_founder_joins_once_the_log_says_who_is_there() -> None:
    cluster = _Cluster("orders", 9, 9, NODES)
    assert _of(NodeConfig(node_id=2, join="http://h:1"), cluster) == "orders"
