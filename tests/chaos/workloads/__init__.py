"""Load: workers that send and consume, each with a ledger of what it was told."""
