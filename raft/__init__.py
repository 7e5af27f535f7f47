"""Makes PySyncObj safe: guarantees the order and the durability of the commit log."""
