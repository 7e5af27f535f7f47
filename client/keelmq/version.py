"""The version of the SDK and of the `keelmq` command, and where they come from."""

from typing import Final

VERSION: Final = "0.3.0"
COMMIT: Final = ""
"""Commit that the package was built from, with `+changes` if files differed from it; empty in a tree."""


def how_to_install(paths: str) -> str:
    """Return how these packages of a clone are installed: no index has them, and what an index has may be anybody's."""
    return f"from a clone of KeelMQ with pip install {paths}, or from the wheels of its make dist"
