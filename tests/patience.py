"""Maximum waiting times for all tests.

A wait ends as soon as its condition holds, so on a quiet machine patience costs nothing. It only has to be long enough
for a machine that is busy with other work. No test asserts how long something took.
"""

from typing import Final

PATIENCE_S: Final = 300.0
"""Maximum seconds for one condition, one answer, one command."""
RUN_PATIENCE_S: Final = 1_200.0
"""Maximum seconds for a program that does much: a demo, a piece of chaos, power losses."""
CALL_PATIENCE_MS: Final = 60_000
"""Maximum milliseconds for a call of the SDK that a failover or a restart of all nodes may lengthen."""
