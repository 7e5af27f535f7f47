"""Deterministic simulation of a KeelMQ cluster: one seed decides clock, network, disk and faults."""
