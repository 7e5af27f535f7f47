"""The audit of a node on its disk: records, the files that hold them, and how they are read."""
