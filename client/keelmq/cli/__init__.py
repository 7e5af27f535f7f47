"""Implementation of the `keelmq` command."""
