"""A real Prometheus in a directory of its own, with the project's alerts."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from deploy.broker_process import HOST, die_with_parent
from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import wait_for
from tests.requirements import REPOSITORY, path_of

SHIPPED: Final = REPOSITORY / "deploy" / "monitoring"
RULES: Final = SHIPPED / "rules.yml"
EXAMPLE: Final = SHIPPED / "prometheus.yml"
WINDOW: Final = "15s"
"""Window of all rates, in place of those of the rules."""
PATIENT_S: Final = "> 300"
IMPATIENT_S: Final = "> 3"
ANSWER_TIMEOUT_S: Final = 10.0

Labels = Mapping[str, str]


def shortened(rules: str) -> str:
    """Return the rules without the time for which a condition has to last, with short windows, and without patience for
    groups and transactions. Expressions stay as they are otherwise.
    """
    rules = re.sub(r"^( +for:) \w+$", r"\1 0s", rules, flags=re.MULTILINE)
    return re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", rules).replace(PATIENT_S, IMPATIENT_S)


def intervals(*, shipped: bool) -> dict[str, str]:
    """Return how often Prometheus scrapes and evaluates: as the example of a configuration says, or each second."""
    if shipped:
        return dict(re.findall(r"^  ((?:scrape|evaluation)_interval): (\w+)$", EXAMPLE.read_text(), re.MULTILINE))
    return {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}


class Prometheus:
    """Owns the process within the context. It has the rules in shortened form, or as they are shipped."""

    def __init__(
        self,
        directory: Path,
        jobs: Mapping[str, Sequence[str]],
        late_jobs: Mapping[str, Mapping[str, Any]],
        *,
        shipped: bool = False,
    ) -> None:
        """`jobs` are the targets by job. `late_jobs` are settings of scrapes by job; their targets come by `watch`."""
        self._directory = directory
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir()
        (directory / "rules.yml").write_text(RULES.read_text() if shipped else shortened(RULES.read_text()))
        scrapes: list[dict[str, Any]] = [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]} for job, targets in jobs.items()
        ]
        for job, settings in late_jobs.items():
            self.watch(job)
            late = {"files": [str(self._targets_of(job))], "refresh_interval": "1s"}
            scrapes.append({"job_name": job, "file_sd_configs": [late], **settings})
        content = {
            "global": intervals(shipped=shipped),
            "rule_files": [str(directory / "rules.yml")],
            "scrape_configs": scrapes,
        }
        (directory / "prometheus.yml").write_text(json.dumps(content))  # JSON is YAML

    def __enter__(self) -> Self:
        command = [
            path_of("prometheus"),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={HOST}:{self._port}",
            "--log.level=warn",
        ]
        with (self._directory / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=partial(die_with_parent, os.getpid())
            )
        wait_for(self._is_ready, "Prometheus to be ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def watch(self, late_job: str, *targets: str) -> None:
        """Have exactly these targets in the job from the next second on."""
        self._targets_of(late_job).write_text(json.dumps([{"targets": list(targets)}] if targets else []))

    def _targets_of(self, late_job: str) -> Path:
        return self._directory / f"{late_job}.json"

    def firing(self) -> list[Labels]:
        """Return the labels of the alerts that are firing, their names included."""
        alerts = self._get("alerts")["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def query(self, expression: str) -> list[Any]:
        """Return the series of an instant query. Raises RuntimeError with what Prometheus says when it is wrong."""
        result: list[Any] = self._get("query", query=expression)["result"]
        return result

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"Prometheus ended: {(self._directory / 'prometheus.log').read_text()}")
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/-/ready", timeout=ANSWER_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **query: str) -> Any:
        url = f"http://{HOST}:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{query}: {error.read().decode(errors='replace')}") from None
