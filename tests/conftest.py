"""pytest hooks for all tests."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from deploy import local_nodes

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a script is started so, and what the tests start would inherit it, deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

for _variable in ("KEELMQ_TOKEN", "KEELMQ_TOKEN_FILE"):  # of whoever runs the tests: they show their own tokens
    os.environ.pop(_variable, None)

# Nothing is judged by a clock on the wall: a busy machine is slow. The examples of a tree are always the same, but in
# `make fuzz`, where they are random (docs/decisions.md, 79); a failure prints the decorator that replays it.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize="FUZZ_SCALE" not in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# A node that is started again needs its ports again: no other worker may have taken them meanwhile.
if "PYTEST_XDIST_WORKER" in os.environ:
    _worker, _workers = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    _own_ports = local_nodes.ports_of_servers()[_worker::_workers]
    local_nodes.ports_of_servers = lambda: _own_ports

UNIT_TESTS: Final = Path(__file__).parent / "unit"
WAITING_TESTS: Final = UNIT_TESTS / "raft"
"""Tests of nodes in one loop, which wait for time-outs of elections."""
OUTPUT_LINES: Final = 40
"""Number of last lines of each node's output in the report of a failed test."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the unit tests last: their many short files keep all workers busy to the end, which a long file would not.
    Files that wait most of their time are spread evenly among the others, or processors would wait with them.
    """
    files = list(dict.fromkeys(item.path for item in items))
    own = [path for path in files if path.is_relative_to(UNIT_TESTS)]
    waiting = [path for path in own if path.is_relative_to(WAITING_TESTS)]
    places = {path: 0.0 for path in files}
    for group in (waiting, [path for path in own if path not in waiting]):
        places |= {path: (number + 0.5) / len(group) for number, path in enumerate(group)}
    items.sort(key=lambda item: places[item.path])  # which keeps the order of the others


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of its nodes' output to the report of a failed test: it may fail on one machine only, and only
    once.
    """
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None:
        for path in sorted(Path(directory).rglob("node*.out")):
            lines = path.read_text(errors="replace").splitlines()[-OUTPUT_LINES:]
            report.sections.append((f"end of {path.relative_to(directory)}", "\n".join(lines)))
    return report
