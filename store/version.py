"""The version of this tree. Every program reports this version, and the packages are built with it."""

from typing import Final

VERSION: Final = "0.3.0"
COMMIT: Final = ""
"""Commit that a package was built from, with `+changes` if files differed from it; empty in a tree. `make dist` writes
it.
"""
