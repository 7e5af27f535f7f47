"""Kill the nodes whose roots are given and remove everything there: `python -m tests.lose_host ROOT…`."""

import os
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from deploy.rollout.host_root import running
from tests.e2e.cluster_process import wait_for


def lose(roots: Iterable[Path]) -> None:
    for root in roots:
        found = running(root)
        if found is not None:
            os.kill(found[0], signal.SIGKILL)
            wait_for(lambda root=root: running(root) is None, "the node to be gone")  # type: ignore[misc]
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    lose(map(Path, sys.argv[1:]))
