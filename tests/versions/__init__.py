"""Versions that meet: what belongs to a feature level, what old logs replay to, and clusters of two versions."""
