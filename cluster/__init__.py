"""One KeelMQ broker node: HTTP API, services and wiring."""

from store.version import COMMIT as COMMIT
from store.version import VERSION as VERSION
