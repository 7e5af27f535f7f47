"""Transactions: prepare, decide, check back."""
