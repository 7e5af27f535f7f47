"""Spark data source and lineage over the KeelMQ log (see docs/architecture.md)."""
