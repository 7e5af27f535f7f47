"""`make audit` fails on what is found, and skips, in words, what no service answers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy import audit
from tests.requirements import GIT

NO_ANSWER = "the advisory service did not answer"
KNOWN: dict[str, Any] = {"name": "aiohttp", "version": "3.14.5", "vulns": []}
UNKNOWN = {"name": "idna", "skip_reason": "not found"}
VULNERABLE = {"name": "idna", "version": "3.20", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.21"]}]}

Tool = Callable[[str, str], None]


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """Make a program, in the place of one of the tools, from lines of Python."""

    def make(name: str, code: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{code}\n")
        path.chmod(0o755)

    return make


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Commits files into a new repository, which takes the place of the project's."""
    GIT.require()
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(audit, "ROOT", root)
    monkeypatch.setattr(audit, "LOCKS", root / "deploy" / "locks")
    monkeypatch.setattr(audit, "BASELINE", root / ".secrets.baseline")
    git(root, "init", "--quiet")

    def commit(files: dict[str, str], tag: str = "") -> None:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        git(root, "add", "--all")
        git(root, "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "--message", "change")
        if tag:
            git(root, "tag", tag)

    return commit


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True)


def answer(*packages: dict[str, Any]) -> str:
    return f"print({json.dumps(json.dumps({'dependencies': packages}))})"


def test_a_known_vulnerability_is_found(tool: Tool, tmp_path: Path) -> None:
    tool("pip-audit", answer(KNOWN, VULNERABLE) + "\nsys.exit(1)")
    part = audit.advisories(tmp_path)
    assert (part.findings, part.skipped) == (["idna 3.20 has PYSEC-1, mended in 3.21"], None)
    assert part.figures["packages"] == 2


def test_a_service_that_knows_none_of_the_versions_has_not_answered(tool: Tool, tmp_path: Path) -> None:
    tool("pip-audit", answer(UNKNOWN, UNKNOWN))
    assert audit.advisories(tmp_path) == audit.Part([], NO_ANSWER, {})


def test_packages_that_the_service_does_not_know_are_named(
    tool: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool("pip-audit", answer(KNOWN, UNKNOWN))
    part = audit.advisories(tmp_path)
    assert (part.findings, part.skipped, part.figures["unknown"]) == ([], None, ["idna"])
    assert "does not know idna" in capsys.readouterr().out


def test_the_second_service_is_asked_when_the_first_does_not_answer(tool: Tool, tmp_path: Path) -> None:
    fails = "if sys.argv[-1] == 'pypi': sys.exit('requests.exceptions.ConnectionError: no route')\n"
    tool("pip-audit", fails + answer(KNOWN))
    assert audit.advisories(tmp_path).figures["service"] == "osv"
    tool("pip-audit", "sys.exit('requests.exceptions.ConnectionError: no route')")
    assert audit.advisories(tmp_path) == audit.Part([], NO_ANSWER, {})


def test_a_service_that_hangs_is_left_alone(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ADVISORIES_TIMEOUT_S", 0.2)
    tool("pip-audit", "time.sleep(600)")
    assert audit.advisories(tmp_path).skipped == NO_ANSWER


def test_a_tool_that_fails_by_itself_is_not_skipped(tool: Tool, tmp_path: Path) -> None:
    tool("pip-audit", "sys.exit('cannot read the lock')")
    with pytest.raises(audit.AuditError, match="cannot read the lock"):
        audit.advisories(tmp_path)


@pytest.mark.parametrize("output", ["not JSON", "{}"])
def test_an_answer_that_cannot_be_read_is_an_error_of_the_audit(output: str, tool: Tool, tmp_path: Path) -> None:
    """The answer must not end the command with a trace: a report-only audit would fail the build then."""
    tool("pip-audit", f"print({output!r})")
    with pytest.raises(audit.AuditError, match="cannot be read"):
        audit.advisories(tmp_path)


@pytest.mark.parametrize(
    ("words", "skipped"),
    [
        ("ERROR: Could not find a version that satisfies pip-audit==2 (from versions: none)", True),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", False),
    ],
)
def test_wrong_hashes_of_the_tools_are_never_skipped(
    words: str, skipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", words)

    monkeypatch.setattr(audit, "run", lambda *_, **__: "")
    monkeypatch.setattr(audit, "call", call)
    if skipped:
        assert audit.install(tmp_path / "new") == "the package index did not answer"
    else:
        with pytest.raises(audit.AuditError, match="DO NOT MATCH"):
            audit.install(tmp_path / "new")


def test_lines_that_were_removed_since_the_tag_are_searched(repository: Callable[..., None], tmp_path: Path) -> None:
    repository({"old.py": "before the tag\n", "ä.py": "one\n"}, tag="v1")
    repository({"old.py": "++ /etc/added = 1\nremoved again\n", "ä.py": "two\n", "gone.py": "third\n"})
    (audit.ROOT / "gone.py").unlink()
    repository({"old.py": "now\n", "ä.py": "one\n"})
    lengths, lines = audit.gather(tmp_path / "tree")
    assert lengths == {"old.py": 1, "ä.py": 1, "gone.py": 0}
    assert lines == 4
    assert (tmp_path / "tree" / "old.py").read_text() == "now\n++ /etc/added = 1\nremoved again\n"
    assert (tmp_path / "tree" / "ä.py").read_text() == "one\ntwo\n"
    assert (tmp_path / "tree" / "gone.py").read_text() == "third\n"


def test_a_secret_is_told_with_its_line_or_as_one_of_the_history(
    repository: Callable[..., None], tool: Tool, tmp_path: Path
) -> None:
    repository({"a.py": "first\n", ".secrets.baseline": "{}", "deploy/locks/x.txt": "--hash=sha256:1\n"})
    repository({"a.py": "second\n"})
    found = [{"filename": "a.py", "type": "Secret Keyword", "line_number": line} for line in (1, 2)]
    code = (
        f"assert sys.argv[5:] == ['a.py']\nprint({json.dumps(json.dumps({'results': {'a.py': found}}))})\nsys.exit(1)"
    )
    tool("detect-secrets-hook", code)
    part = audit.secrets(tmp_path)
    assert part.findings == [
        "a.py: Secret Keyword, in a former version: git log -p -- a.py",
        "a.py: Secret Keyword, line 1",
    ]
    tool("detect-secrets-hook", "")
    assert audit.secrets(tmp_path).findings == []
    tool("detect-secrets-hook", "sys.exit('no baseline')")
    with pytest.raises(audit.AuditError, match="no baseline"):
        audit.secrets(tmp_path)


@pytest.mark.parametrize(("arguments", "code"), [([], 1), (["--report-only"], 0)])
def test_only_a_report_forgives_what_is_found(
    arguments: list[str],
    code: int,
    repository: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A tree without a baseline cannot be audited: an error counts like a finding."""
    repository({"a.txt": "text"})
    (tmp_path / "audit" / "bin").mkdir(parents=True)
    (audit.ROOT / "deploy" / "locks").mkdir(parents=True)
    (audit.ROOT / "deploy" / "locks" / "audit.txt").write_text("lock")
    (tmp_path / "audit" / "installed.txt").write_text("lock")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["audit", *arguments])
    assert audit.main() == code
    assert "audit:" in capfd.readouterr().err
