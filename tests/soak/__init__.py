"""A long, steady load on real nodes: disk and memory must be flat."""
