"""Measurements of a node's hot paths, counted so that a request costs a fraction of a microsecond for it."""
