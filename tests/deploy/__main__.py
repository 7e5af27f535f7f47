"""Run `make deploy-test`: nine hosts as network namespaces with an sshd each, which nothing but a bundle reaches.

first       from nothing to a served message on five hosts, with the time of each stage
verbs       under a load of which no call may fail and no message be lost: restart, upgrade to another release,
            rollback, and a wiped host that is replaced
killed      the tool killed at every step of an upgrade and of a replacement, under the same load
versions    upgrade from the last release to this tree and back, twice, under the same load
ways-back   a backup under load, restored on other hosts when all are wiped; recovery from one of three nodes
operations  docs/operations.md, word for word
playbook    the rendered playbook, run by Ansible: installs services, changes nothing when run again, and takes over
            other options and another release under load
large       the start of a node with a long log (--restart-gib); a wiped follower (--wiped-gib) that is replaced under
            load, beside the time of copying its log

The last line is `RESULT {json}`.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.bundle import bundle
from deploy.reporting.report import Report
from tests.chaos.isolation import ISOLATED_VARIABLE, enter_isolation
from tests.deploy.first import First
from tests.deploy.former import former_bundle
from tests.deploy.hosts import SSH, hosts
from tests.deploy.killed import Killed
from tests.deploy.large import Large
from tests.deploy.operations import Operations
from tests.deploy.playbook import MACHINES, Playbook
from tests.deploy.trial import OTHER_PLACES, PLACES, Bundles, Sizes, Trial, another_release
from tests.deploy.verbs import Verbs
from tests.deploy.versions import Versions
from tests.deploy.ways_back import WaysBack
from tests.versions.releases import releases

ALL: Final[tuple[type[Trial], ...]] = (First, Verbs, Killed, Versions, WaysBack, Operations, Playbook, Large)
TRIALS: Final = {trial.name: trial for trial in ALL}
NOT_RUN: Final = 2


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make deploy-test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, help="File of `make bundle`; without it, one is made.")
    parser.add_argument("--former", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--trial", action="append", choices=list(TRIALS), help="Run this one (default: all).")
    for name, default in Sizes()._asdict().items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=default, help=f"GiB of `large` (default: {default:g}).")
    given = parser.parse_args()
    sizes = Sizes(given.restart_gib, given.wiped_gib)
    if SSH.reason is not None:
        print(f"deploy-test: {SSH.reason}", file=sys.stderr)
        return NOT_RUN
    report = Report()
    with tempfile.TemporaryDirectory() as work:
        if ISOLATED_VARIABLE not in os.environ:
            # Namespaces have no way to an index of packages, so the bundles are made before.
            given.bundle = given.bundle or bundle(Path(work), Path("dist"), report)
            former = former_bundle(given.bundle, Path("dist"))
            given.former = former and former[1]
    arguments = ["--bundle", str(given.bundle.absolute())]
    arguments += ["--former", str(given.former.absolute())] if given.former else []
    arguments += [part for name in given.trial or [] for part in ("--trial", name)]
    arguments += ["--restart-gib", str(sizes.restart_gib), "--wiped-gib", str(sizes.wiped_gib)]
    if (reason := enter_isolation(arguments, "tests.deploy")) is not None:
        print(f"deploy-test: {reason}", file=sys.stderr)
        return NOT_RUN
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        chosen = given.trial or list(TRIALS)
        machines = MACHINES if Playbook.name in chosen else ()
        with hosts(directory, [*PLACES.values(), *OTHER_PLACES.values(), *machines], machines) as made:
            another = another_release(given.bundle, directory / "another.tar.gz")
            former = given.former and (releases()[-1], given.former)
            bundles = Bundles(given.bundle, another, former)
            for trial in chosen:
                result |= asyncio.run(TRIALS[trial](report, made, bundles, sizes).run())
    report.result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
