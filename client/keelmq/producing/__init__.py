"""Producers: choice of the queue, and messages that share requests."""
