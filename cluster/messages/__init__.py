"""Topics, and sending, pulling and finding their messages."""
