"""The leader's side: the progress of each follower, and the messages to it."""
