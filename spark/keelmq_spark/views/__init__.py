"""Rows of the data source: one per event of the log, or one per message as consumers see it."""
