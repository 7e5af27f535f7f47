"""Everything that parses bytes from outside, fed with bytes that nobody should send. docs/fuzzing.md"""
