"""Connections to the nodes: requests, retries, which node is asked."""
