"""The committed log, decoded."""
