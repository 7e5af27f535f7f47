"""Topics, queues, and where each message is."""
