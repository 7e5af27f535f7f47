"""The promises of deploy/Containerfile about its image, and the limits that a node runs with in a container."""

from typing import Final

AGENT: Final = "/opt/keelmq/bin/keelmq-container"
"""deploy/container/agent.py: probes, and what comes before a stop."""
USER: Final = 10001
CONFIG_DIR: Final = "/etc/keelmq"
CONFIG: Final = f"{CONFIG_DIR}/node.toml"
DATA_ROOT: Final = "/var/lib/keelmq"
"""Place of the volume. The node makes its directory below it, so that nobody else may read that."""
DATA: Final = f"{DATA_ROOT}/data"
FILES_MAX: Final = 65536
PROCESSES_MAX: Final = 256
STOP_S: Final = 60
"""Time in which a node has handed over and stopped, as in the unit for systemd."""
HAND_OVER_S: Final = 60
"""Time that a stop waits, before, until the others can do without the node."""
