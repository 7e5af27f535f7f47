"""The commit log: records in segments, recovery, and the files beside it that say what is synced."""
