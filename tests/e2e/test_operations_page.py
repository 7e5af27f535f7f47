"""docs/operations.md on nodes of this machine; `make deploy-test` follows it on hosts with nothing but Python."""

from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from tests.operations_page import Surroundings, follow
from tests.requirements import BASH

pytestmark = pytest.mark.process


def test_the_page_does_what_it_says(tmp_path: Path, keelmqd: str) -> None:
    BASH.require()
    ports = iter(free_ports(8))
    places = {(host, port): f"127.0.0.1:{next(ports)}" for host in (1, 2, 3, 4) for port in (7081, 7091)}
    program = {"program": keelmqd}
    follow(tmp_path, Surroundings(lambda host, port: places[host, port], program, None, has_bundles=False))
