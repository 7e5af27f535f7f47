"""Commit log, state machine and index of one node; no asyncio, network, clock or randomness."""
