"""The state as a stream, to another node and from it."""
