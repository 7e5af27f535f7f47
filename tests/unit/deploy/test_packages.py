"""The image and the Debian package, as far as their files say what they are."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from deploy.deb import debian_version
from deploy.dist import VERSION_FILES, commit, note_commit
from deploy.image import CONTAINERFILE, PINNED
from deploy.rollout.rendering.image import AGENT, CONFIG, DATA, DATA_ROOT, USER
from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY

DIGEST: Final = "0123456789abcdef" * 4


def last_stage() -> str:
    """Return the instructions that make the image itself, each on one line."""
    return CONTAINERFILE.read_text().replace("\\\n", " ").rpartition("\nFROM ")[2]


def test_the_image_is_what_renderings_rely_on() -> None:
    text = last_stage()
    assert f"\nUSER {USER}:{USER}\n" in text
    assert f"\nVOLUME {DATA_ROOT}\n" in text
    assert f"KEELMQ_DATA_DIR={DATA}\n" in text
    assert re.search(rf'HEALTHCHECK .*CMD \["{AGENT}", "healthy", "--config", "{CONFIG}"\]', text)
    assert f"/agent.py {AGENT}\n" in CONTAINERFILE.read_text()
    assert 'ENTRYPOINT ["/opt/keelmq/bin/keelmqd"]' in text


@pytest.mark.parametrize("base", ["python:3.11", f"python@sha256:{DIGEST[1:]}", f"python@sha256:{DIGEST} x", ""])
def test_a_base_without_its_digest_is_refused(base: str) -> None:
    command = [sys.executable, "-m", "deploy.image", "--base", base]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "has no digest" in done.stderr
    assert PINNED.fullmatch(f"registry.example/python@sha256:{DIGEST}")


@pytest.mark.parametrize(
    ("version", "debian"),
    [
        ("0.3.0", "0.3.0"),
        ("0.3.0.dev1", "0.3.0~dev1"),
        ("1.0rc2", "1.0~rc2"),
        ("1.0b1", "1.0~b1"),
        ("0.3.0+a", "0.3.0+a"),
    ],
)
def test_pre_releases_come_before_their_release(version: str, debian: str) -> None:
    assert debian_version(version) == debian


@pytest.mark.parametrize("action", ["remove", "upgrade"])
def test_a_removal_disables_what_is_enabled(tmp_path: Path, action: str) -> None:
    wants = tmp_path / "units" / "multi-user.target.wants"
    wants.mkdir(parents=True)
    for unit in ("keelmqd@shop.service", "keelmq-backup@shop.timer", "ssh.service"):
        (wants / unit).symlink_to(f"/usr/lib/systemd/system/{unit}")
    called = tmp_path / "called"
    called.touch()
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\necho "$*" >>{called}\n')
    systemctl.chmod(0o755)
    (tmp_path / "lib").mkdir()
    script = (REPOSITORY / "deploy" / "debian" / "prerm").read_text()
    for place, instead in (("/etc/systemd/system", "units"), ("/usr/lib/keelmq", "lib"), ("/run/systemd", "none")):
        script = script.replace(place, str(tmp_path / instead))
    path = f"{systemctl.parent}:/usr/bin:/bin"
    subprocess.run(["sh", "-c", script, "prerm", action], check=True, env={"PATH": path}, timeout=PATIENCE_S)
    disabled = ["--quiet disable keelmq-backup@shop.timer", "--quiet disable keelmqd@shop.service"]
    assert sorted(called.read_text().splitlines()) == (disabled if action == "remove" else [])


@pytest.mark.parametrize("name", VERSION_FILES)
def test_packages_say_which_commit_they_are_of(tmp_path: Path, name: str) -> None:
    copy = tmp_path / "version.py"
    copy.write_text((REPOSITORY / name).read_text())
    note_commit(copy, "0123456789ab", 7)
    found: dict[str, str] = {}
    exec(copy.read_text(), found)
    assert found["COMMIT"] == "0123456789ab"
    assert copy.stat().st_mtime == 7
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True).stdout
    assert head.startswith(commit().removesuffix("+changes"))
