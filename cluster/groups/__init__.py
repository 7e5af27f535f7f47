"""Consumer groups: their members, offsets, retries and pop consumers."""
