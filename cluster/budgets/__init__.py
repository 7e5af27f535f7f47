"""Limits on the resources of a node that one client may use: bytes, connections, turns, loop time, waiting time."""
