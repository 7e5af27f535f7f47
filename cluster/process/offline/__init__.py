"""The commands on a stopped node: dump and verify its log, restore a backup, recover from a lost majority."""
