"""Handlers for transactions: prepare, decide, and check back with producers."""
