"""Runs a node of this tree that knows the first feature level only: `python -m tests.versions.first_level_node run …`.

A cluster of such nodes is as clusters of 0.2.0 were: its log does not name the nodes that it began with.
"""

import sys

from store.features import FEATURES, LEVELS
from store.version import VERSION

if __name__ == "__main__":
    FEATURES.set_levels(LEVELS[:1], FEATURES.minimum, VERSION, of_code=LEVELS)
    from cluster.main import main

    sys.exit(main())
