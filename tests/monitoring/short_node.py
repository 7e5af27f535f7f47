"""Runs `keelmqd` with a settable clock and short windows: `python -m tests.monitoring.short_node run …`.

What a node looks at over the last hour, or the last quarter of one, it looks at over seconds, as the shortened rules of
the alerts do.
"""

import os
import sys
from pathlib import Path
from typing import Final

from tests.chaos.skewed_node import CLOCK_VARIABLE, run

SAMPLE_S: Final = 1.0
WINDOW_S: Final = 15.0
KNOWN_AFTER_S: Final = 4.0


def shorten() -> None:
    from cluster.health import disk_trend
    from raft.election import election

    replaced = (
        (disk_trend, {"SAMPLE_S": SAMPLE_S, "WINDOW_S": WINDOW_S, "KNOWN_AFTER_S": KNOWN_AFTER_S}),
        (election, {"RECENT_S": WINDOW_S}),
    )
    for module, values in replaced:
        for name, value in values.items():
            assert hasattr(module, name), name
            setattr(module, name, value)


if __name__ == "__main__":
    sys.exit(run(Path(os.environ[CLOCK_VARIABLE]), shorten))
