"""Runs chaos on real broker processes: faults from a seed, load through SDK and HTTP, and a verdict (docs/chaos.md)."""
