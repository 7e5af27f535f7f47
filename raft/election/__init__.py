"""Terms and votes: who may lead, who should, and when a node stands for it."""
