"""One KeelMQ broker node: HTTP API, services and wiring."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("keelmq-broker")
