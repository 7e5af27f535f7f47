"""The verdict: pure checks of what nodes hold against what workers were told, and the code that fetches it."""
