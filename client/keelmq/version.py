"""The version of the SDK and of the `keelmq` command."""

from typing import Final

VERSION: Final = "0.3.0"
