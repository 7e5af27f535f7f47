"""Snapshots: the state as a stream, sent to another node or received from one."""
