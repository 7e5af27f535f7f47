"""Administration: nodes, replicas, settings, feature level, the log of the cluster."""
