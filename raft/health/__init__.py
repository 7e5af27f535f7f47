"""State that nodes tell each other of themselves: clocks, disks, presence, backlog."""
