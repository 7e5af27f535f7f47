"""Commands for who runs the cluster: its nodes, its log, its backups, and what is wrong with it."""
