"""Transfers of the state to nodes that lack what the log no longer has."""
