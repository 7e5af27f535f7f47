"""Figures of a node in `keelmq top`."""

from keelmq.cli.operations.cluster import Answer
from keelmq.cli.operations.exposition import Reading
from keelmq.cli.operations.top import _row


def test_connections_are_those_of_all_listeners() -> None:
    """A node of an earlier version shows those of one."""
    clients, own = "keelmq_http_connections 10.0\n", "keelmq_admin_connections 3.0\n"
    for text, connections in ((clients + own, 13), (clients, 10)):
        row = _row(Answer("http://n1:1", None, "it does not answer"), None, Reading(text), 1.0)
        assert row["connections"] == connections
