"""On PYTHONPATH, this makes every fdatasync of the process a promise without substance: the harness must notice."""

import os


def fdatasync(fd: object) -> None:
    """Claims success and does nothing."""


os.fdatasync = fdatasync
