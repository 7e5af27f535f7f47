"""What one client may take of the node: bytes, connections, turns, time on the loop, time to wait."""
