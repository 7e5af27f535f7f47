"""Consumers: group sessions, queues, handler calls, redelivery; pop consumers."""
