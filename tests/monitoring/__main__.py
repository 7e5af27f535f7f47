"""Run `make monitoring-test`: a real Prometheus watches three real nodes, and each fault has to raise its alerts.

Prometheus scrapes every second, with the rules of deploy/monitoring/ in shortened form. First no alert may fire. Then
every query of the dashboards is evaluated. Then the faults come one after the other: while each lasts, its alerts have
to fire, and `keelmq doctor` has to find it, which it must not have done before; after it the alerts have to end. The
last line is `RESULT {json}`; the exit status is 1 when an alert or a finding was missing or came later than the goal,
and when a fault was left out because something is not there.

With --shipped the rules, and the times between scrapes and evaluations, are those of deploy/monitoring/: first each
node is restarted, which must raise no alert, then come the faults that stop the service, or nearly do.
"""

import argparse
import contextlib
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from deploy.monitoring.dashboards import DASHBOARDS, RATE
from deploy.reporting.report import Report
from raft.config import TlsConfig
from tests.certificates import Authority, today
from tests.e2e.closed_cluster import administrator_file
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.e2e.small_disk import mounted_at
from tests.monitoring.closed_node import CLOSED_FAULTS, closed_node
from tests.monitoring.examination import Doctor
from tests.monitoring.faults import DISK_BYTES, OPTIONS, Fault, Faults
from tests.monitoring.planted import FAULTS
from tests.monitoring.prometheus import WINDOW, Prometheus
from tests.requirements import PROMETHEUS, SMALL_DISK

JOB: Final = "keelmq"
TLS_JOB: Final = "keelmq-tls"
CLOSED_JOB: Final = "keelmq-closed"
CERTIFICATE_DAYS: Final = 5
CERTIFICATES: Final = "certificates"
CERTIFICATE_ALERTS: Final = ("KeelMQHttpCertificateEnds", "KeelMQPeerCertificateEnds")
CERTIFICATE_FINDINGS: Final = ("certificate_ends",)
OF_THE_MACHINE: Final = frozenset(
    {"KeelMQLoopSaturated", "KeelMQSyncSlow", "KeelMQCommitSlow", "KeelMQDiskFillsSoon", "KeelMQWarningAlarm"}
)
"""Alerts that a busy machine raises with short windows, whatever the cluster does."""
WITHOUT_LOAD: Final = frozenset({"KeelMQLoopSaturated"})
"""Alerts that a busy machine raises in an idle cluster, too."""
FOUND_WITHOUT_FAULT: Final = frozenset({"loop_late", "sync_slow", "commit_slow"})
"""Findings of the doctor on a busy machine, whatever the cluster does."""
GOAL_S: Final = 60.0
"""Seconds within which an alert has to fire, and a finding to be printed."""
SHIPPED: Final = {
    "one-down": ("KeelMQNodeDown", "KeelMQPeerSilent", "KeelMQOneFailureFromNoQuorum"),
    "two-down": ("KeelMQNoQuorum",),
    "all-down": ("KeelMQAllNodesDown",),
    "new-disk": ("KeelMQReplicaUnsound",),
    "low-disk": ("KeelMQDiskLow",),
}
"""Alerts that the rules as they are shipped have to raise within the goal, by fault."""
Victim = TypeVar("Victim")
VARIABLES: Final = {RATE: WINDOW, "$job": JOB, "$instance": ".*"}


class Trial:
    """One cluster, its Prometheus, a doctor for each job, and what was seen."""

    def __init__(self, report: Report, prometheus: Prometheus, cluster: ClusterProcess) -> None:
        self._report = report
        self._prometheus = prometheus
        self._cluster = cluster
        self.doctors = {JOB: Doctor(cluster.servers)}
        self.raised_s: dict[str, dict[str, float]] = {}
        self.found_s: dict[str, dict[str, float]] = {}
        """Seconds from the moment a fault stood until each alert fired, and until each finding was printed."""
        self.skipped: dict[str, str] = {}
        self.missing: list[str] = []

    def firing(self, job: str = JOB, labels: Mapping[str, Mapping[str, str]] | None = None) -> set[str]:
        """Return the names of the alerts of one cluster that are firing; of those in `labels`, with these alone."""
        of_job = [alert for alert in self._prometheus.firing() if alert.get("job", JOB) == job]
        wanted = labels or {}
        return {each["alertname"] for each in of_job if wanted.get(each["alertname"], {}).items() <= each.items()}

    def fired(self, seconds: float, job: str = JOB) -> set[str]:
        """Return the names of the alerts of one cluster that were firing at any time within the last seconds."""
        query = f'count_over_time(ALERTS{{alertstate="firing", job="{job}"}}[{seconds:.0f}s])'
        return {series["metric"]["alertname"] for series in self._prometheus.query(query)}

    def settle(self, job: str = JOB, nodes: int = 3) -> None:
        """Wait until Prometheus has all nodes, and no alert fires that the machine alone cannot explain."""
        twice = f'count_over_time(keelmq_raft_term{{job="{job}"}}[{WINDOW}]) > 1'
        wait_for(lambda: len(self._prometheus.query(twice)) == nodes, "all nodes to be scraped twice")
        self._wait(lambda: not self.firing(job) - OF_THE_MACHINE, "no alert to fire")

    def evaluate_dashboards(self) -> tuple[int, list[str]]:
        """Evaluate every query of the dashboards. Return their number, and the panels without a series."""
        queries, empty = 0, []
        for dashboard in DASHBOARDS:
            for panel in dashboard.panels:
                found = 0
                for expression, _ in panel.queries:
                    for name, value in VARIABLES.items():
                        expression = expression.replace(name, value)
                    queries += 1
                    found += len(self._prometheus.query(expression))
                if not found:
                    empty.append(f"{dashboard.name}: {panel.title}")
        return queries, empty

    def provoke(self, fault: Fault[Victim], victim: Victim, job: str = JOB) -> None:
        if fault.needs is not None and fault.needs.reason is not None:
            self.skipped[fault.name] = fault.needs.reason
            self._report.event(f"{fault.name}: left out, {fault.needs.reason}")
            return
        self._report.step(f"{fault.name}: {', '.join(fault.alerts)}; {', '.join(fault.findings)}")
        before = set(fault.alerts) - WITHOUT_LOAD
        self._wait(lambda: not before & self.firing(job), f"{', '.join(before)} not to fire before the fault")
        self._find_nothing(set(fault.findings) - FOUND_WITHOUT_FAULT, job)
        with fault.provoke(victim):
            stands_s = time.monotonic()
            self.expect(fault.name, fault.alerts, job, fault.labels)
            stir = None if fault.stir is None else partial(fault.stir, victim)
            self.examine(fault.name, fault.findings, stands_s, job, fault.look_s, stir)
        gone = set(fault.alerts) - OF_THE_MACHINE
        self._wait(lambda: not gone & self.firing(job), f"{', '.join(gone)} to end")
        self._report.event(f"{fault.name}: over", "recovery")

    def expect(
        self, name: str, alerts: Sequence[str], job: str = JOB, labels: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """Wait for the alerts, those in `labels` with these, and note after how many seconds each fired."""
        begun_s, seen = time.monotonic(), self.raised_s.setdefault(name, {})

        def all_fire() -> bool:
            for alert in set(alerts) & self.firing(job, labels) - seen.keys():
                seen[alert] = round(time.monotonic() - begun_s, 1)
                self._report.event(f"{alert} fires after {seen[alert]} s", "fault")
            return set(alerts) <= seen.keys()

        try:
            wait_for(all_fire, f"{', '.join(alerts)} to fire")
        except TimeoutError:
            self.missing += [f"{name}: {alert}" for alert in alerts if alert not in seen]

    def _find_nothing(self, codes: set[str], job: str) -> None:
        found = self.doctors[job].until(lambda found: not codes & found)
        if codes & found:
            raise TimeoutError(f"the doctor finds {', '.join(codes & found)} before the fault")

    def examine(
        self,
        name: str,
        codes: Sequence[str],
        stands_s: float,
        job: str = JOB,
        look_s: float = 0.0,
        stir: Callable[[], None] | None = None,
    ) -> None:
        """Have the doctor find all codes, and note how many seconds after `stands_s` each was printed."""
        seen = self.found_s.setdefault(name, {})

        def note(found: set[str]) -> bool:
            for code in set(codes) & found - seen.keys():
                seen[code] = round(time.monotonic() - stands_s, 1)
                self._report.event(f"the doctor finds {code} after {seen[code]} s", "fault")
            return set(codes) <= seen.keys()

        found = self.doctors[job].until(note, look_s, stir)
        missing = [f"{name}: {code}" for code in codes if code not in seen]
        if missing:
            self._report.event(f"the doctor does not find {missing}, but {sorted(found)}", "problem")
            self.missing += missing

    def _wait(self, condition: Any, what: str) -> None:
        try:
            wait_for(condition, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; firing: {self._prometheus.firing()}\n{self._cluster.tails()}") from None


@contextlib.contextmanager
def ending_certificates(directory: Path, files: TlsConfig, trial: Trial, prometheus: Prometheus) -> Iterator[None]:
    """Run one node with these certificates, as a cluster of its own that Prometheus watches over TLS."""
    pairs = {"--http-tls-cert": files.certificate_file, "--http-tls-key": files.key_file}
    pairs |= {"--tls-cert": files.certificate_file, "--tls-key": files.key_file, "--tls-ca": files.ca_file}
    options = [*OPTIONS, *(part for pair in pairs.items() for part in pair)]
    context = ssl.create_default_context(cafile=files.ca_file)
    with ClusterProcess(directory, nodes=1, options=options, tls=context) as cluster:
        prometheus.watch(TLS_JOB, f"{cluster.nodes[1].host}:{cluster.nodes[1].http_port}")
        trial.doctors[TLS_JOB] = Doctor(cluster.servers, {"KEELMQ_CA_FILE": files.ca_file})
        yield


def late(trial: Trial, goal_s: float) -> list[str]:
    """Return what came later than the goal, with the seconds that it took."""
    kinds = (trial.raised_s, trial.found_s)
    times = [(name, what, s) for kind in kinds for name, of in kind.items() for what, s in of.items()]
    return [f"{name}: {what} after {s} s" for name, what, s in times if s > goal_s]


def restart_all(cluster: ClusterProcess, trial: Trial) -> dict[str, Any]:
    """Restart the nodes one after the other, as an upgrade does. Return how long each was away, and what fired."""
    begun_s, away_s = time.monotonic(), []
    for node in cluster.nodes.values():
        stopped_s = time.monotonic()
        node.terminate()
        node.start()
        cluster.wait_ready()
        away_s.append(round(time.monotonic() - stopped_s, 1))
    trial.settle()
    return {"away_s": away_s, "fired": sorted(trial.fired(time.monotonic() - begun_s) - OF_THE_MACHINE)}


def run(report: Report, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    chosen = list(SHIPPED) if options.shipped and not options.fault else options.fault
    with contextlib.ExitStack() as stack:
        (directory / "cluster").mkdir()
        if SMALL_DISK.reason is None:
            for node_id in (1, 2, 3):
                stack.enter_context(mounted_at(directory / "cluster" / f"node{node_id}", DISK_BYTES))
        cluster = ClusterProcess(directory / "cluster", options=OPTIONS)
        faults = Faults(cluster)
        report.step("starting three nodes and Prometheus")
        stack.enter_context(cluster)
        faults.prepare()
        targets = [f"{node.host}:{node.http_port}" for node in cluster.nodes.values()]
        for name in ("tls", "closed"):
            (directory / name).mkdir()
        ending = Authority().issue(directory / "tls", 1, "e2e", ends=today() + timedelta(days=CERTIFICATE_DAYS))
        token_file = str(administrator_file(directory))
        late_jobs: dict[str, dict[str, Any]] = {
            TLS_JOB: {"scheme": "https", "tls_config": {"ca_file": ending.ca_file}},
            CLOSED_JOB: {"authorization": {"credentials_file": token_file}},
        }
        prometheus = stack.enter_context(
            Prometheus(directory / "prometheus", {JOB: targets}, late_jobs, shipped=options.shipped)
        )
        trial = Trial(report, prometheus, cluster)
        trial.settle()
        queries, empty = trial.evaluate_dashboards()
        report.event(f"{queries} queries of dashboards evaluated, {len(empty)} panels without a series: {empty}")
        restarts = {}
        if options.shipped:
            report.step("restarting the nodes, one after the other")
            restarts = restart_all(cluster, trial)
            trial.missing += [f"restart: {alert} must not fire" for alert in restarts["fired"]]
            report.event(f"restarted, away for {restarts['away_s']} s: {restarts['fired'] or 'nothing'} fired")
        for fault in FAULTS:
            if not chosen or fault.name in chosen:
                trial.provoke(fault._replace(alerts=SHIPPED[fault.name]) if options.shipped else fault, faults)
        closed = [fault for fault in CLOSED_FAULTS if not chosen or fault.name in chosen]
        if closed:
            report.step("starting a node that enforces permissions")
            with closed_node(directory / "closed", OPTIONS) as node:
                prometheus.watch(CLOSED_JOB, node.target)
                trial.doctors[CLOSED_JOB] = Doctor(f"http://{node.target}", {"KEELMQ_TOKEN_FILE": token_file})
                trial.settle(CLOSED_JOB, nodes=1)
                for each in closed:
                    trial.provoke(each, node, CLOSED_JOB)
            prometheus.watch(CLOSED_JOB)
        if not chosen or CERTIFICATES in chosen:
            report.step(f"{CERTIFICATES}: {', '.join((*CERTIFICATE_ALERTS, *CERTIFICATE_FINDINGS))}")
            with ending_certificates(directory / "tls", ending, trial, prometheus):
                stands_s = time.monotonic()
                trial.expect(CERTIFICATES, CERTIFICATE_ALERTS, TLS_JOB)
                trial.examine(CERTIFICATES, CERTIFICATE_FINDINGS, stands_s, TLS_JOB)
        slowest = {
            name: max((s for each in of.values() for s in each.values()), default=None)
            for name, of in (("alert", trial.raised_s), ("finding", trial.found_s))
        }
        return {
            "faults": len(trial.found_s),
            "slowest_s": slowest,
            "raised_s": trial.raised_s,
            "found_s": trial.found_s,
            "goal_s": options.goal_s,
            "late": late(trial, options.goal_s),
            "skipped": trial.skipped,
            "missing": trial.missing,
            "restarts": restarts,
            "queries": queries,
            "panels_without_series": empty,
        }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make monitoring-test", description=__doc__)
    names = [*(fault.name for fault in FAULTS), *(fault.name for fault in CLOSED_FAULTS), CERTIFICATES]
    parser.add_argument(
        "--fault", action="append", choices=names, default=[], help="Provoke only this one; repeatable."
    )
    parser.add_argument(
        "--shipped", action="store_true", help=f"With the rules as they are shipped; the faults {', '.join(SHIPPED)}."
    )
    parser.add_argument(
        "--goal-s", type=float, default=GOAL_S, help="Fail when an alert or a finding takes longer. (%(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="Keep the data of the nodes and of Prometheus.")
    options = parser.parse_args()
    if options.shipped and not set(options.fault) <= set(SHIPPED):
        parser.error(f"--shipped knows the faults {', '.join(SHIPPED)}")
    report = Report()
    if PROMETHEUS.reason is not None:
        report.text(PROMETHEUS.reason, "problem")
        report.result({"skipped": PROMETHEUS.reason})
        return 1
    directory = Path(tempfile.mkdtemp(prefix="keelmq-monitoring-"))
    try:
        result = run(report, directory, options)
    finally:
        if options.keep:
            report.text(f"data: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    for each in result["missing"]:
        report.text(f"did not fire, or was not found: {each}", "problem")
    for each in result["late"]:
        report.text(f"later than {options.goal_s:g} s: {each}", "problem")
    for name, reason in result["skipped"].items():
        report.text(f"left out: {name}, {reason}", "problem")
    report.result(result)
    return 1 if result["missing"] or result["late"] or result["skipped"] else 0


if __name__ == "__main__":
    sys.exit(main())
