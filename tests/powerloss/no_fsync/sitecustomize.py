"""Makes every fdatasync of a process with this directory on its PYTHONPATH a no-op, which the harness must notice."""

import os


def fdatasync(fd: object) -> None:
    """Claim success and do nothing."""


os.fdatasync = fdatasync
