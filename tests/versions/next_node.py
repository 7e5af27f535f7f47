"""Runs a node of the version to come: `python -m tests.versions.next_node run …` (tests/versions/next_version.py)."""

import sys

from tests.versions.next_version import install

if __name__ == "__main__":
    install()
    from cluster.main import main

    sys.exit(main())
