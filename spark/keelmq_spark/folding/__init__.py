"""Events folded into nodes and edges, and written into the tables."""
