"""Consumer groups: members, offsets, leases, redelivery, pops."""
