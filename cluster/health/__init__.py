"""The health of a node: readiness, alarms, and guards that prevent harm."""
