"""The leader's side: what each follower has, and what is sent to it."""
