"""The node as its handlers see it: they propose commands, wait until entries are applied, and read the log."""
