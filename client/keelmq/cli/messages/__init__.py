"""Commands for topics and what goes through them: messages, and transactions until they are decided."""
