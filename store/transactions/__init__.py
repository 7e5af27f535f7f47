"""Transactions, from half message to outcome."""
