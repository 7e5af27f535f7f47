"""Fuzz tests of everything that parses bytes from outside, with bytes that nobody should send (docs/fuzzing.md)."""
