"""Makes the log durable beside the loop: group commit, by the kernel or by a thread."""
