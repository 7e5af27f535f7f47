"""Message blocks: batches of messages encoded as the broker stores them."""
