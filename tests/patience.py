"""How long tests wait, for all of them.

A wait ends as soon as its condition holds, so on a quiet machine patience costs nothing; it only has to be long enough
for a machine that is busy with much else. How long something took is never asserted.
"""

from typing import Final

PATIENCE_S: Final = 300.0
"""For one condition, one answer, one command."""
RUN_PATIENCE_S: Final = 1_200.0
"""For a program that does much: a demo, a piece of chaos, power losses."""
CALL_PATIENCE_MS: Final = 60_000
"""For a call of the SDK that a failover or a restart of all nodes may lengthen."""
