"""Consumer groups: members, offsets, retries, pops."""
