"""The process around the node: options, data directory, exit codes, logs, joining a cluster."""
