"""Background work that runs in rounds and without a request: timers, retention, scrubbing of old segments."""
