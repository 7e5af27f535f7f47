"""The node as its handlers see it: propose, wait for what is applied, read the log."""
