"""`make audit`: known vulnerabilities of the locked versions, and secrets in the tree and in its recent history.

pip-audit asks the advisory services, and detect-secrets compares what looks like a secret with `.secrets.baseline`.
Both are installed, locked, into an environment of their own. The exit code is 1 when something is found, or 0 with
`--report-only`. A part whose service does not answer is skipped, in words, and fails nothing. The last line is
`RESULT {json}`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.reporting.result import result_line

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = ROOT / "deploy" / "locks"
BASELINE: Final = ROOT / ".secrets.baseline"
INSTALL_TIMEOUT_S: Final = 40
ADVISORIES_TIMEOUT_S: Final = 30
"""Maximum time for all advisory services together."""
SERVICES: Final = ("pypi", "osv")
UNREACHABLE: Final = ("from versions: none", "timed out", "ConnectionError", "NewConnectionError", "Max retries")
"""Words of pip for an index that does not answer. Other failures, wrong hashes among them, are no reason to skip."""


class AuditError(Exception):
    """The audit itself has failed; the text says why."""


class Part(NamedTuple):
    """Result of one part: its findings, and `skipped`, the reason why it looked at nothing (or None)."""

    findings: list[str]
    skipped: str | None
    figures: dict[str, Any]


def main() -> int:
    options = parse_arguments()
    try:
        reason = install(Path(sys.prefix) / "audit")
        tools = Path(sys.prefix, "audit", "bin")
        if options.update_baseline and reason is None:
            return update_baseline(tools)
        parts = {
            "advisories": Part([], reason, {}) if reason else advisories(tools),
            "secrets": Part([], reason, {}) if reason else secrets(tools),
        }
    except (AuditError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 0 if options.report_only else 1
    for name, part in parts.items():
        print(f"audit: {name}: {f'skipped: {part.skipped}' if part.skipped else f'{len(part.findings)} found'}")
        for finding in part.findings:
            print(f"audit: {finding}")
    result = {name: {"skipped": part.skipped, "found": part.findings, **part.figures} for name, part in parts.items()}
    print(result_line(result), flush=True)
    return 1 if any(part.findings for part in parts.values()) and not options.report_only else 0


def install(environment: Path) -> str | None:
    """Install the locked tools unless they are there. Return why that cannot be done; None when they are there."""
    lock, mark = LOCKS / "audit.txt", environment / "installed.txt"
    if mark.exists() and mark.read_bytes() == lock.read_bytes():
        return None
    print("audit: installing pip-audit and detect-secrets (a few seconds)", flush=True)
    run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment)], cwd=ROOT)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--timeout", "10", "--retries", "1", "--no-deps", "--only-binary", ":all:"]
    try:
        done = call([*pip, "--require-hashes", "--requirement", str(lock)], cwd=ROOT, timeout_s=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"the package index did not deliver the tools within {INSTALL_TIMEOUT_S} s"
    if done.returncode == 0:
        mark.write_bytes(lock.read_bytes())
        return None
    if any(words in done.stderr for words in UNREACHABLE):
        return "the package index did not answer"
    raise AuditError(f"pip cannot install the tools:\n{done.stderr.strip()}")


def advisories(tools: Path) -> Part:
    """Ask the first advisory service that answers about every locked version."""
    locks = sorted(LOCKS.glob("*.txt"))
    print(f"audit: asking the advisory services about the versions of {len(locks)} locks", flush=True)
    accepted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["keelmq"]["audit"]["accepted"]
    command = [str(tools / "pip-audit"), "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
    command += ["--timeout", "10", "--format", "json"]
    command += [word for lock in locks for word in ("--requirement", str(lock))]
    command += [word for advisory in accepted for word in ("--ignore-vuln", advisory)]
    for service in SERVICES:
        try:
            done = call([*command, "-s", service], cwd=ROOT, timeout_s=ADVISORIES_TIMEOUT_S / len(SERVICES))
        except subprocess.TimeoutExpired:
            continue
        if done.stdout:
            try:
                part = judged(json.loads(done.stdout), service)
            except (ValueError, KeyError) as error:
                raise AuditError(f"the answer of pip-audit cannot be read: {error!r}") from None
            if part.skipped is None:
                return part
        elif not any(words in done.stderr for words in UNREACHABLE):
            raise AuditError(f"pip-audit failed:\n{done.stderr.strip()[-2000:]}")
    return Part([], "the advisory service did not answer", {})


def judged(answer: dict[str, Any], service: str) -> Part:
    """Judge an answer of pip-audit. A service that knows none of the versions has not answered."""
    known = [each for each in answer["dependencies"] if "skip_reason" not in each]
    unknown = sorted({each["name"] for each in answer["dependencies"] if "skip_reason" in each})
    if not known:
        return Part([], "the advisory service did not answer", {})
    if unknown:
        print(f"audit: the service {service} does not know {', '.join(unknown)}")
    findings = {
        f"{each['name']} {each['version']} has {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for each in known
        for found in each["vulns"]
    }
    return Part(sorted(findings), None, {"service": service, "packages": len(known), "unknown": unknown})


def secrets(tools: Path) -> Part:
    """Search the tracked files, and the lines added since the last tag, for secrets that the baseline does not list."""
    print("audit: searching the tree and its history since the last tag for secrets", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary, "tree")
        lengths, lines = gather(work)
        baseline = Path(temporary, "baseline")  # the tool rewrites a baseline whose line numbers are old
        baseline.write_bytes(BASELINE.read_bytes())
        run(["git", "init", "--quiet"], cwd=work)  # the tool asks git whether the baseline is committed
        hook = [str(tools / "detect-secrets-hook"), "--no-verify", "--json", "--baseline", str(baseline)]
        done = call([*hook, *lengths], cwd=work)
    # 1 is also the exit code of most failures, which print no JSON; 3 says that line numbers in the baseline are old.
    if done.returncode not in (0, 1, 3) or (done.returncode == 1 and not done.stdout.startswith("{")):
        raise AuditError(f"detect-secrets failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")
    found = json.loads(done.stdout)["results"] if done.returncode == 1 else {}
    findings = [told(each, lengths[name]) for name, all_of_it in found.items() for each in all_of_it]
    return Part(sorted(findings), None, {"files": len(lengths), "history_lines": lines})


def told(finding: dict[str, Any], length: int) -> str:
    """Say where a finding is: lines behind the end of the present file come from its history."""
    line = finding["line_number"]
    place = f"line {line}" if line <= length else "in a former version: git log -p -- " + finding["filename"]
    return f"{finding['filename']}: {finding['type']}, {place}"


def gather(work: Path) -> tuple[dict[str, int], int]:
    """Copy the tracked files to `work`, and append to each the lines that it had since the last tag.

    Return the number of lines that each file has by now, and the number of appended lines. A line that stands anywhere
    in the tree is not appended, and locks are left out: `make lint` lets nothing but versions and hashes stand there.
    """
    texts: dict[str, list[str]] = {}
    for name in run(["git", "ls-files", "-z"], cwd=ROOT).rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            texts[name] = (ROOT / name).read_text(errors="replace").splitlines()
    present = {line for lines in texts.values() for line in lines}
    lengths = {name: len(lines) for name, lines in texts.items()}
    gone = {name: lines - present for name, lines in added_since_tag().items()}
    total = 0
    for name in sorted(texts.keys() | gone.keys()):
        if (ROOT / name).is_relative_to(LOCKS) or name == BASELINE.name:
            lengths.pop(name, None)
            continue
        lengths.setdefault(name, 0)
        former = sorted(gone.get(name, ()))
        total += len(former)
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("\n".join([*texts.get(name, ()), *former]) + "\n")
    return lengths, total


def added_since_tag() -> dict[str, set[str]]:
    """Return the lines that commits have added since the last tag (or ever, without a tag), by the file's name."""
    described = call(["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT)
    commits = f"{described.stdout.strip()}..HEAD" if described.returncode == 0 else "HEAD"
    log = ["git", "-c", "core.quotePath=off", "log", "-p", "-m", "--unified=0", "--no-color", "--no-ext-diff"]
    added: dict[str, set[str]] = {}
    name, header = "", True
    for line in run([*log, "--no-prefix", "--format=", commits], cwd=ROOT).split("\n"):
        if line.startswith(("diff --git ", "@@ ")):
            header = line.startswith("d")
        elif header and line.startswith("+++ "):  # in a header only: an added line may begin with the same characters
            name = line.removeprefix("+++ ").rstrip("\t")
        elif not header and line.startswith("+"):
            added.setdefault(name, set()).add(line[1:])
    return added


def update_baseline(tools: Path) -> int:
    """Write every present finding into the baseline: whoever commits it has looked at each of them."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary, "tree")
        gather(work)
        scan = [str(tools / "detect-secrets"), "scan", "--no-verify", "--all-files", "--baseline", str(BASELINE)]
        run(scan, cwd=work)
    BASELINE.write_text(BASELINE.read_text().replace(str(BASELINE), BASELINE.name))
    print(f"audit: {BASELINE.name} lists all findings now; look at each in `git diff` before you commit it")
    return 0


def call(command: Sequence[str], *, cwd: Path, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    return subprocess.run(  # noqa: S603
        command, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout_s
    )


def run(command: Sequence[str], *, cwd: Path) -> str:
    """Return the standard output of the command. Raises AuditError when it fails."""
    done = call(command, cwd=cwd)
    if done.returncode != 0:
        raise AuditError(f"{' '.join(command[:3])} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make audit", description="Search for vulnerabilities and for secrets.")
    parser.add_argument("--update-baseline", action="store_true", help="Accept every secret that is found now.")
    parser.add_argument("--report-only", action="store_true", help="Print findings and errors, and exit with 0.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
