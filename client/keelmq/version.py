"""The version of the SDK and of the `keelmq` command."""

from typing import Final

VERSION: Final = "0.3.0"
COMMIT: Final = ""
"""Commit that the package was built from, with `+changes` if files differed from it; empty in a tree."""
