"""The commands of the log, each with its result."""
