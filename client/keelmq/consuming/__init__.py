"""Consumers: sessions, queues, handler calls, redelivery; pop consumers."""
