"""The locks follow from the pyproject files, and the check says so when they no longer do."""

import re
import shutil
from pathlib import Path

import pytest

from deploy.lock_files import DIRECT, DIRECTORY, FOLDERS, ROOT, Lock, LockError, Pin, check, path_of, read, written
from deploy.refresh_locks import installable, pins_of

HASH = f"sha256:{'0' * 64}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the pyproject files and the locks."""
    for folder in FOLDERS.values():
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.copyfile(ROOT / folder / "pyproject.toml", tmp_path / folder / "pyproject.toml")
    shutil.copytree(ROOT / DIRECTORY, tmp_path / DIRECTORY)
    return tmp_path


def edit(path: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def test_the_locks_of_the_project_follow_from_its_pyproject_files() -> None:
    assert check(ROOT) == []


def test_reading_and_writing_a_lock_gives_the_same_bytes() -> None:
    for path in (ROOT / DIRECTORY).iterdir():
        assert written(read(path)) == path.read_text(), path.name


def test_a_range_that_excludes_the_pinned_version_is_a_fault(tree: Path) -> None:
    edit(tree / "pyproject.toml", r"aiohttp>=[\d.]+,<4", "aiohttp>=3.99,<4")
    faults = check(tree)
    assert any("broker.txt was made for other requirements: aiohttp" in fault for fault in faults)
    assert any(re.match(r"broker.txt pins aiohttp \S+, but the project asks for aiohttp", fault) for fault in faults)


def test_an_extra_that_is_added_to_a_requirement_is_a_fault(tree: Path) -> None:
    edit(tree / "client" / "pyproject.toml", r"SQLAlchemy\[asyncio\]", "SQLAlchemy[asyncio,mypy]")
    assert [fault.partition(":")[0] for fault in check(tree)] == ["sdk.txt was made for other requirements"]


def test_a_requirement_of_the_sdk_is_one_of_spark(tree: Path) -> None:
    """The name keelmq means another program on an index: the lock has the requirements of the SDK in its place."""
    edit(tree / "client" / "pyproject.toml", r"^dependencies = \[", 'dependencies = ["orjson>=3",')
    faults = check(tree)
    assert "sdk.txt does not pin orjson" in faults
    assert "spark.txt does not pin orjson" in faults


@pytest.mark.parametrize(
    ("pattern", "replacement", "fault"),
    [
        (r"^aiohttp==\S+", "aiohttp==4.0", "pins aiohttp 4.0, but the project asks for"),
        (r"^frozenlist==[^#]*", r"frozenlist==1.8.0 \\\n    ", "has no hash of frozenlist"),
        (r"# via aiohttp$", "# via nothing", "for nothing, which it lacks"),
        (r"^aiohttp==", "keelmq==", "pins keelmq, which is of this project"),
        (r"\Z", "--extra-index-url somewhere\n", "a lock does not contain"),
        (r"sha256:", "md5:", "a lock does not contain"),
    ],
)
def test_a_lock_that_was_edited_is_a_fault(tree: Path, pattern: str, replacement: str, fault: str) -> None:
    edit(path_of("broker", tree), pattern, replacement)
    assert any(re.search(fault, each) for each in check(tree)), check(tree)


def test_two_locks_with_different_versions_of_a_package_are_a_fault(tree: Path) -> None:
    edit(path_of("sdk", tree), r"^zstandard==\S+", "zstandard==0.25.99")
    assert any(re.match(r"sdk.txt pins zstandard 0.25.99, but broker.txt pins ", each) for each in check(tree))


def test_a_missing_and_a_stray_lock_are_faults(tree: Path) -> None:
    path_of("dist", tree).rename(path_of("other", tree))
    faults = check(tree)
    assert "other.txt is no lock of the project" in faults
    assert any("dist.txt" in fault for fault in faults)


def test_an_unreadable_line_is_told_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text(written(Lock(("a",), (Pin("a", "1", "", (HASH,), (DIRECT,)),))) + "b>=1\n")
    with pytest.raises(LockError, match=r"some.txt, line 6: .*b>=1"):
        read(path)


def test_the_resolver_s_text_becomes_pins_of_what_linux_installs() -> None:
    text = f"""\
click==8.5.1 \\
    --hash={HASH} \\
    --hash={HASH.replace("0", "1")}
    # via
    #   -c constraints.txt
    #   typer
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash={HASH}
    # via click
old==1.0 ; python_full_version < '3.12' \\
    --hash={HASH}
    # via
    #   click
    #   colorama
typer==0.29.2 \\
    --hash={HASH}
"""
    click, old, typer = installable(pins_of(text, ["Typer>=0.29"]))
    assert click == Pin("click", "8.5.1", "", (HASH, HASH.replace("0", "1")), ("typer",))
    assert old == Pin("old", "1.0", "python_full_version < '3.12'", (HASH,), ("click",))
    assert typer == Pin("typer", "0.29.2", "", (HASH,), (DIRECT,))
