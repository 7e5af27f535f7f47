"""The lineage tables: their schemas, their files, and the commit that holds them together."""
