"""Handlers for administration: nodes, replicas, settings, feature level, the log of the cluster."""
