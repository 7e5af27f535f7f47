"""Producers: queues are chosen, messages share requests."""
