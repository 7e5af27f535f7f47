"""The `keelmq` command."""
