"""Commands for consumer groups and their dead letters."""
