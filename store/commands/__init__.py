"""The commands of the log, and the result of each."""
