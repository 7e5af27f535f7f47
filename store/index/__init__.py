"""The index in RocksDB: its keys, and the staging of one entry's writes."""
