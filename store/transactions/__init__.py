"""Transactions, from the half message to the outcome."""
