"""The verdict: pure checks of the nodes' data against what workers were told, and the code that fetches that data."""
