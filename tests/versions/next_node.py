"""Runs a node of the version to come: `python -m tests.versions.next_node run …` (tests/versions/next_version.py)."""

import sys

from tests.versions.next_version import install


def prepare() -> None:
    install()


if __name__ == "__main__":
    prepare()
    from cluster.main import main

    sys.exit(main())
