"""Alerts, their tests and runbooks, and dashboards: all speak of metrics that a running node really shows."""

import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families

from deploy.monitoring.dashboards import DASHBOARDS, DIRECTORY, text_of
from keelmq.cli.app import app
from keelmq.cli.lazy import LazyCommand
from keelmq.cli.operations.alarm_steps import STEPS
from tests.monitoring.__main__ import CERTIFICATE_ALERTS, CERTIFICATE_FINDINGS, CERTIFICATES
from tests.monitoring.closed_node import CLOSED_FAULTS
from tests.monitoring.planted import FAULTS
from tests.requirements import PROMETHEUS, REPOSITORY, path_of
from tests.unit.cluster.conftest import Node, node_config, running_node

MONITORING: Final = REPOSITORY / "deploy" / "monitoring"
RULES: Final = (MONITORING / "rules.yml").read_text()
RUNBOOKS: Final = (REPOSITORY / "docs" / "runbooks.md").read_text()
METRICS: Final = (REPOSITORY / "docs" / "metrics.md").read_text()
ROW_OF_FAULT: Final = r"^\| (`[\w-]+`) \| .* \| (.*) \| (.*) \|$"
OPERATIONS: Final = REPOSITORY / "client" / "keelmq" / "cli" / "operations"
FINDINGS: Final = "".join(path.read_text() for path in sorted(OPERATIONS.glob("*findings.py")))
ALERTS: Final = re.findall(r"- alert: (\w+)$", RULES, re.MULTILINE)
EXPRESSION: Final = re.compile(r"- alert: (\w+)\n +expr: \|-\n((?: {10}.*\n)+)")
METRIC: Final = re.compile(r"\b(?:keelmq|process|python)_\w+")
COMMAND: Final = re.compile(r"`(keelmq [^`]+)`")
QUICK: Final = ("0m", "15s", "30s", "45s")
UNITS: Final = {"m": "min", "h": "h"}
DRAWN: Final = (
    ("topics", "keelmq_topic_bytes"),
    ("node", "keelmq_index_stalls_total"),
    ("node", "keelmq_index_compactions_running"),
    ("cluster", "keelmq_peer_certificate_expires_timestamp_seconds"),
    ("cluster", "keelmq_http_certificate_expires_timestamp_seconds"),
    ("cluster", "keelmq_backup_age_seconds"),
)
PARTS: Final = ["Means", "Look", "Do"]


@pytest.fixture(scope="module")
def promtool() -> str:
    PROMETHEUS.require()
    return path_of("promtool")


def output_of(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=MONITORING)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_the_example_of_a_configuration(promtool: str) -> None:
    code, output = output_of(promtool, "check", "config", "prometheus.yml")
    assert (code, f"SUCCESS: {len(ALERTS)} rules found" in output) == (0, True), output


def test_every_alert_fires_for_its_fault_and_none_in_a_healthy_cluster(promtool: str) -> None:
    code, output = output_of(promtool, "test", "rules", "rules_test.yml")
    assert code == 0, output


def test_a_restart_raises_no_alert_and_what_stops_the_service_does_within_a_minute(promtool: str) -> None:
    code, output = output_of(promtool, "test", "rules", "rules_times_test.yml")
    assert code == 0, output


@pytest.mark.parametrize("fires", [0, 1], ids=["never", "always"])
def test_alerts_that_never_or_always_fire_are_noticed(promtool: str, tmp_path: Path, fires: int) -> None:
    expressions = EXPRESSION.findall(RULES)
    assert [alert for alert, _ in expressions] == ALERTS
    rules = RULES
    for _, expression in expressions:
        rules = rules.replace(expression, f"          vector({fires}) > 0\n")
    (tmp_path / "rules.yml").write_text(rules)
    shutil.copy(MONITORING / "rules_test.yml", tmp_path)
    code, output = output_of(promtool, "test", "rules", str(tmp_path / "rules_test.yml"))
    assert code != 0
    assert set(re.findall(r"alertname: (\w+)", output)) == set(ALERTS)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE) == ALERTS
    linked = re.findall(r"runbook_url: docs/runbooks\.md#(\w+)$", RULES, re.MULTILINE)
    assert linked == [alert.lower() for alert in ALERTS]
    sections = RUNBOOKS.split("\n## ")[1:]
    incomplete = [text.split("\n")[0] for text in sections if re.findall(r"^\*\*(\w+)\.\*\*", text, re.M) != PARTS]
    assert incomplete == []


def test_the_page_counts_the_alerts() -> None:
    (count,) = re.findall(r"`rules\.yml` \((\d+)\s+alerts\)", METRICS)
    assert int(count) == len(ALERTS)


def test_the_page_names_the_alerts_that_wait_for_longer() -> None:
    waiting = dict(re.findall(r"- alert: (\w+)\n(?:(?! +- alert).*\n)*?        for: (\w+)$", RULES, re.MULTILINE))
    longer = [(alert, last) for alert, last in waiting.items() if last not in QUICK]
    bullet = METRICS.split("* **Alerts that wait for longer**")[1].split("\n* ")[0]
    assert re.findall(r"`(\w+)` \((\w+ \w+)\)", " ".join(bullet.split())) == [
        (alert, f"{last[:-1]} {UNITS[last[-1]]}") for alert, last in longer
    ]


def test_every_alert_is_raised_by_a_fault_of_real_nodes() -> None:
    raised = {alert for fault in FAULTS for alert in fault.alerts}
    raised |= {alert for fault in CLOSED_FAULTS for alert in fault.alerts} | set(CERTIFICATE_ALERTS)
    assert raised == set(ALERTS)


def test_the_page_lists_the_faults_with_their_alerts_and_findings() -> None:
    tried = [(each.name, each.alerts, each.findings) for each in FAULTS]
    tried += [(each.name, each.alerts, each.findings) for each in CLOSED_FAULTS]
    tried.append((CERTIFICATES, CERTIFICATE_ALERTS, CERTIFICATE_FINDINGS))
    section = METRICS.split("## Faults that are tried")[1].split("\n## ")[0]
    rows = [[re.findall(r"`(\S+)`", cell) for cell in row] for row in re.findall(ROW_OF_FAULT, section, re.MULTILINE)]
    assert rows == [[[name], list(alerts), list(findings)] for name, alerts, findings in tried]


def test_links_to_runbooks_lead_to_sections() -> None:
    targets = set(re.findall(r"\(#(\w+)\)", RUNBOOKS))
    assert targets <= {alert.lower() for alert in ALERTS}


def wrong_words(command: str) -> Iterator[str]:
    """Yield the subcommands and options of a `keelmq` command that do not exist."""
    here: Any = typer.main.get_command(app)
    for word in command.split()[1:]:
        if word in getattr(here, "commands", {}):
            found = here.commands[word]
            here = found.load() if isinstance(found, LazyCommand) else found
        elif getattr(here, "commands", None):
            yield f"{command}: {word}"
            return
        elif word.startswith("--") and not any(word in parameter.opts for parameter in here.params):
            yield f"{command}: {word}"


def test_runbooks_name_commands_that_exist() -> None:
    commands = {" ".join(found.split()) for found in COMMAND.findall(RUNBOOKS)}
    assert len(commands) > 10
    assert [wrong for command in sorted(commands) for wrong in wrong_words(command)] == []
    assert list(wrong_words("keelmq group forget")) == ["keelmq group forget: forget"]
    assert list(wrong_words("keelmq group show --frog g")) == ["keelmq group show --frog g: --frog"]


def test_the_command_of_the_page_makes_every_link_to_a_runbook_whole(tmp_path: Path) -> None:
    (command,) = re.findall(r"`(sed -i '[^`]+' rules\.yml)`", METRICS)
    shutil.copy(MONITORING / "rules.yml", tmp_path)
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    changed = (tmp_path / "rules.yml").read_text()
    links = re.findall(r"runbook_url: (.*)", changed)
    assert links == [f"https://wiki.example.com/keelmq/docs/runbooks.md#{alert.lower()}" for alert in ALERTS]
    assert changed.replace("https://wiki.example.com/keelmq/", "") == RULES, "nothing else changes"


def test_no_runbook_restarts_a_node_to_have_another_one_lead() -> None:
    """A restart takes a voter away; draining the node does not."""
    advice = [text for text in re.split(r"\n(?=## |\*\*)", RUNBOOKS) if re.search(r"(?<!no )\brestarting\b", text)]
    assert advice == []
    (stalled,) = [text for text in RUNBOOKS.split("\n## ") if text.startswith("KeelMQIndexStalled")]
    assert "`keelmq node drain ID`" in stalled


def test_the_doctor_has_a_next_step_for_each_alarm_of_the_page() -> None:
    section = METRICS.split("\n## Alarms\n")[1]
    assert STEPS.keys() == set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    commands = {command for step in STEPS.values() for command in re.findall(r"keelmq [a-z][^;,]*", step)}
    assert len(commands) > 5
    assert [wrong for command in sorted(commands) for wrong in wrong_words(command)] == []
    pages = {page for step in STEPS.values() for page in re.findall(r"docs/\w+\.md", step)}
    assert [page for page in pages if not (REPOSITORY / page).exists()] == []


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[set[str]]:
    """Return the names of all series that a running node may show."""
    async with running_node(node_config(tmp_path), []) as node:
        yield await _names_of(node)


async def _names_of(node: Node) -> set[str]:
    names = set()
    for family in text_string_to_metric_families((await node.call("GET", "/metrics")).body.decode()):
        names.add(family.name + ("_total" if family.type == "counter" else ""))
        names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count") if family.type == "histogram"}
    return names


async def test_alerts_runbooks_and_dashboards_name_metrics_that_a_node_shows(shown: set[str]) -> None:
    queries = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query, _ in panel.queries]
    for text in (RULES, *queries):
        assert set(METRIC.findall(re.sub(r"#.*", "", text))) - shown == set(), text
    histograms = {name.removesuffix("_bucket") for name in shown if name.endswith("_bucket")}
    for text in (RUNBOOKS, FINDINGS):
        assert set(METRIC.findall(text)) - shown - histograms == set()
    assert "keelmq_frogs" not in shown


def test_the_dashboards_show_what_somebody_looks_for_after_an_alert() -> None:
    drawn = {(each.name, name) for each in DASHBOARDS for panel in each.panels for name in METRIC.findall(str(panel))}
    assert set(DRAWN) <= drawn


def test_the_files_of_the_dashboards_are_what_their_source_says() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.json")} == {dashboard.name for dashboard in DASHBOARDS}
    stale = [each.name for each in DASHBOARDS if (DIRECTORY / f"{each.name}.json").read_text() != text_of(each)]
    assert stale == [], "run python -m deploy.monitoring.dashboards"
