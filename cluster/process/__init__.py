"""The process around the node: options, data directory, exit codes, logs, how it joins a cluster."""
