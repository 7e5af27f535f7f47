"""Connections to the nodes: requests, retries, choice of the node."""
