"""The state machine that applies entries, and the questions that are asked of it."""
