"""What a node measures on its hot paths, counted so that a request costs a fraction of a microsecond for it."""
