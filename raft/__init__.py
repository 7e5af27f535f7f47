"""PySyncObj made safe: order and durability of the commit log."""
