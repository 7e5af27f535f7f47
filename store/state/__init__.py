"""The state machine that applies entries, and the queries on its state."""
