"""A node whose event loop stands from SIGUSR1 on until something is written into the pipe named by STANDING_PIPE."""

import os
import signal
import sys
from pathlib import Path

from cluster.main import main


def stand(*_: object) -> None:
    Path(os.environ["STANDING_PIPE"]).read_bytes()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, stand)
    sys.exit(main())
