"""Commands for users and their tokens, and for certificates."""
