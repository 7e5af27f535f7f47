"""The soak: a long, steady load on real nodes, under which disk and memory must be flat."""
