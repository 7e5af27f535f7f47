"""Connections between nodes: who may speak, frames, lanes, and the pace of data."""
