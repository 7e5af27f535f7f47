"""The index over RocksDB: its keys, and the writes that one entry stages."""
