"""`--join`: nodes that may begin without knowing the nodes that the cluster began with."""

import pytest

from cluster.process.exit_codes import StartupError
from cluster.process.join import _Cluster, _id_of, _Node, _Unsettled

NODES = (_Node(1), _Node(2))


def test_a_founder_does_not_join_while_the_log_says_nothing_of_the_nodes() -> None:
    cluster = _Cluster("orders", 0, 100, NODES)
    with pytest.raises(StartupError, match="same --peer options"):
        _id_of(cluster, 2)
    assert _id_of(cluster, 3) == "orders"


def test_a_member_waits_while_the_log_may_yet_say_nothing_of_the_nodes() -> None:
    """Entries that are not committed may be cut off, and a node with a new disk would never know which nodes there
    are.
    """
    cluster = _Cluster("orders", 9, 8, NODES)
    with pytest.raises(_Unsettled):
        _id_of(cluster, 2)
    assert _id_of(cluster, 3) == "orders"


def test_a_member_joins_once_the_log_says_who_is_there() -> None:
    assert _id_of(_Cluster("orders", 9, 9, NODES), 2) == "orders"
