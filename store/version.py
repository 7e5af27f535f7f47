"""The version of this tree. Every program reports this version, and the packages are built with it."""

from typing import Final

VERSION: Final = "0.3.0"
