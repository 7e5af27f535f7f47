"""Starts a node with a defect: `CHAOS_BROKEN=acks-alone python -m tests.chaos.broken_node run …`
(tests/chaos/broken.py).
"""

import os
import sys
from pathlib import Path

from tests.chaos.broken import BROKEN_VARIABLE, DEFECTS
from tests.chaos.skewed_node import CLOCK_VARIABLE, run

if __name__ == "__main__":
    sys.exit(run(Path(os.environ[CLOCK_VARIABLE]), DEFECTS[os.environ[BROKEN_VARIABLE]].install))
