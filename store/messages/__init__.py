"""Topics, queues, and the location of each message."""
