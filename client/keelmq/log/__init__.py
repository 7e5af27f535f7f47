"""Decoders of the committed log."""
