"""The version of this tree: what every program of it calls itself, and what the packages are built as."""

from typing import Final

VERSION: Final = "0.2.0"
