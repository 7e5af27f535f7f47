"""Work that no request asks for, in rounds: timers, retention, reading old segments."""
