"""The path of entries: proposed by a leader, taken by followers, appended, applied."""
