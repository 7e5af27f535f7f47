"""The commit log: records in segments, recovery, and the files beside the segments that say what is synced."""
