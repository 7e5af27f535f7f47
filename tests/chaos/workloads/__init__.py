"""The load: workers that send and consume, each with a ledger of the outcomes it was told."""
