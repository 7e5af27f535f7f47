"""Provokes the project's alerts with a real Prometheus on a real cluster."""
