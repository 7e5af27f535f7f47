"""Write batches into tables in an object store and get killed in the middle. test_object_store.py runs this module as a
process.

A relay in front of the store kills a fork of this process right before every `step`th request that changes something,
and another fork begins again where that one ended. The last line says how many kills there were; the exit code is 1
when the tables differ from those that nobody disturbed.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables import layout
from tests.object_store import StoreProcess
from tests.store_requests import CHANGES, NotForwarded, Request, RequestRelay
from tests.unit.spark.killed_writer import CONTINUED_AT, in_fork, kill_everywhere, write

BUCKET: Final = "tables"
ROWS: Final = {
    "events": "SELECT * FROM events",
    "nodes": "SELECT * REPLACE (open::BOOLEAN AS open) FROM nodes",  # a text where the name of a directory has it
    "edges": "SELECT src, dst, kind, ts, event_id FROM edges",
}


def content(place: Any) -> dict[str, list[str]]:
    """Return the rows of each table, which do not depend on how they were written."""
    with Graph(place) as graph:
        return {name: sorted(map(str, graph.rows(query))) for name, query in ROWS.items()}


class Killer:
    """Hook of a relay that ends a process, as kill -9 does, before the `change`th request that changes something."""

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self._left = 0

    def arm(self, change: int) -> None:
        self._left = change

    def tell(self) -> None:
        """Say that this process is the one to end."""
        os.write(self._pipe[1], os.getpid().to_bytes(8, "big"))

    def __call__(self, request: Request) -> None:
        if request.method in CHANGES:
            self._left -= 1
            if self._left == 0:
                os.kill(int.from_bytes(os.read(self._pipe[0], 8), "big"), signal.SIGKILL)
                raise NotForwarded


def main(root: Path, step: int, compact_every: int) -> int:
    layout.COMPACT_EVERY = compact_every  # type: ignore[misc]
    expected = root / "expected"

    def undisturbed() -> None:
        write(root / "undisturbed", "delta")
        expected.write_text(json.dumps(content(root / "undisturbed")))

    assert in_fork(undisturbed) == 0
    killer = Killer()
    with StoreProcess(root, list_page=1_000) as store, RequestRelay(store, killer) as relay:
        os.environ.update(store.environment, AWS_ENDPOINT_URL=relay.url)
        store.client.create_bucket(Bucket=BUCKET)

        def disturbed(change: int) -> None:
            killer.tell()
            write(place_of(change), "delta")

        def disturb(change: int) -> int:
            killer.arm(change)
            status = in_fork(partial(disturbed, change))
            killer.arm(0)
            return status

        def begin_again(change: int) -> bool:
            os.environ["AWS_ENDPOINT_URL"] = store.url
            write(place_of(change), "delta", CONTINUED_AT)
            return bool(content(place_of(change)) == json.loads(expected.read_text()))

        return kill_everywhere(step, disturb, begin_again)


def place_of(change: int) -> Any:
    return f"s3://{BUCKET}/killed-{change}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
