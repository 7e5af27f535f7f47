"""Tests of versions that meet: the content of a feature level, the replay of old logs, and clusters of two versions."""
