"""Rules of the documents: lines that fit, tables read in seconds, and walks through the code that name what exists."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.unit.test_project import DOCUMENTS, ROOT, SOURCES, name_of

COLUMNS_MAX: Final = 120
"""Maximum number of columns of a line outside tables and code."""
CELL_CHARACTERS_MAX: Final = 400
"""Maximum length of a cell of a table. What needs more is a section that the cell links to, or a row more."""
CELL_BORDER: Final = re.compile(r"(?<!\\)\|")
JSON_OBJECT: Final = re.compile(r'\{\s*\\?"')
ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"
WALKS: Final = (
    "Terms",
    "A send, file by file",
    "A pull, file by file",
    "A transaction and its check-back, file by file",
    "A pop, file by file",
    "A snapshot, file by file",
    "Threads",
    "Adding a command",
)
SDK: Final = ROOT / "client" / "keelmq"
SHIPPED: Final = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("cluster", "raft", "store", "client")]
FILE_OR_FOLDER: Final = re.compile(r"`(?:([\w./-]+\.py)|([\w.-]+/[\w./-]*/))`")
NAME: Final = re.compile(r"`([A-Za-z_]\w*(?:\.(?!py`)\w+)?)`")
IN_FILE: Final = re.compile(r"`([A-Za-z_][\w.]*)`,? (?:in|of) `([\w./-]+\.py)`")
FILE_WITH: Final = re.compile(r"`([\w./-]+\.py)`(?:, | \()`([A-Za-z_]\w*(?:\.(?!py`)\w+)?)`")
OF_PYTHON: Final = {"SimpleQueue", "call_soon_threadsafe", "fdatasync", "pread"}
"""Names of the standard library or the system, which no file of the walk has."""


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside fenced code with their numbers."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_lines_outside_tables_and_code_fit_120_columns(document: Path) -> None:
    lines = [(number, line) for number, line in _prose(document.read_text()) if not line.startswith("|")]
    assert [number for number, line in lines if len(line) > COLUMNS_MAX] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_no_cell_of_a_table_holds_json(document: Path) -> None:
    cells = [(number, line) for number, line in _prose(document.read_text()) if line.startswith("|")]
    assert [number for number, line in cells if JSON_OBJECT.search(line)] == []


def _long_cells(text: str) -> list[str]:
    """Return where cells of tables are too long: line, column and length of each."""
    rows = [(number, line.strip().strip("|")) for number, line in _prose(text) if line.lstrip().startswith("|")]
    cells = [
        (number, column, len(cell.strip()))
        for number, row in rows
        for column, cell in enumerate(CELL_BORDER.split(row), 1)
    ]
    return [
        f"line {number}, column {column}: {length}" for number, column, length in cells if length > CELL_CHARACTERS_MAX
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_cell_of_a_table_is_read_in_seconds(document: Path) -> None:
    assert _long_cells(document.read_text()) == []


def test_a_long_cell_is_told_by_its_place() -> None:
    longest = "x" * CELL_CHARACTERS_MAX
    table = f"| a | b |\n|---|---|\n| {longest} | `a \\| b` |\n| c | {longest}x |\n"
    assert _long_cells(table) == ["line 4, column 2: 401"]
    assert _long_cells(f"{longest}x\n```\n| {longest}x |\n```\n") == []


# --- walks through the code ------------------------------------------------------------------------------------------


def _section(heading: str) -> str:
    """Return a section of the architecture. Raises when it has no such heading."""
    parts = re.split(r"^## (.*)$", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def _places(text: str) -> tuple[dict[str, Path], list[str]]:
    """Return the files that the text means, by the names it gives them, and the names of which there is no file.

    A name with a path is one of the tree or of the SDK. A name alone is beside a file, or in a folder, named before it.
    """
    found: dict[str, Path] = {}
    lacking: list[str] = []
    folders: set[Path] = set()
    for named, folder in FILE_OR_FOLDER.findall(text):
        roots = (ROOT, SDK) if "/" in named or folder else folders
        place = next((path for root in roots if (path := root / (named or folder)).exists()), None)
        if place is None:
            lacking.append(named or folder)
        elif folder:
            folders.add(place)
        else:
            folders.add(place.parent)
            found[named] = place
    return found, lacking


@cache
def _defined(path: Path) -> frozenset[str]:
    """Return what the file defines: functions, classes, methods as `Class.method` too, parameters, fields, all that it
    assigns, and the texts that name something, such as topics and headers.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                found |= {name, *(f"{name}.{part.name}" for part in body if isinstance(part, ast.FunctionDef))}
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Constant(value=str(name)):
                found.add(name)
    return frozenset(found)


def _unknown(text: str) -> list[str]:
    """Return what the text names and the code lacks: files, functions in the files that it says they are in, and names
    that no package defines.
    """
    places, lacking = _places(text)
    if lacking:
        return lacking
    told = [*IN_FILE.findall(text), *((name, named) for named, name in FILE_WITH.findall(text))]
    lacking = [f"{name} in {named}" for name, named in told if name not in _defined(places[named])]
    shipped = frozenset().union(*map(_defined, SHIPPED))
    return lacking + [name for name in NAME.findall(text) if name not in shipped | OF_PYTHON]


@pytest.mark.parametrize("heading", WALKS)
def test_a_walk_names_files_and_functions_that_exist(heading: str) -> None:
    text = _section(heading)
    assert _places(text)[0]
    assert _unknown(text) == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("`raft/node.py` and `lost.py`", ["lost.py"]),
        ("`raft/" + "gone.py` (`stop`)", ["raft/" + "gone.py"]),
        ("(`halt` in `raft/node.py`)", ["halt in raft/node.py", "halt"]),
        (
            "Apply (`store/transactions/transactions.py`, `unprepare`)",
            ["unprepare in store/transactions/transactions.py", "unprepare"],
        ),
        ("`raft/node.py` answers a `Knock`", ["Knock"]),
        ("`stop` in `raft/node.py`, `entry.py` of `store/commands/`", ["entry.py"]),
        ("`store/commands/` with `entry.py`; `stop` in `raft/node.py`", []),
    ],
)
def test_a_walk_that_leads_astray_is_told(text: str, unknown: list[str]) -> None:
    assert _unknown(text) == unknown


# --- the tree in the README -----------------------------------------------------------------------------------------

README: Final = ROOT / "README.md"


def test_the_readme_names_every_folder_of_tests() -> None:
    row = next(line for line in README.read_text().splitlines() if line.startswith("| [tests/](tests) |"))
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert sorted(folders - set(re.findall(r"`(\w+)`", row))) == []


# --- threads ---------------------------------------------------------------------------------------------------------

LOCKS: Final = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
"""Names of `threading` by which threads exclude each other."""


def _locks(path: Path) -> list[str]:
    """Return the class, or else the file, around each lock that the file makes for threads."""
    tree = ast.parse(path.read_text())
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "threading"
        for name in node.names
        if name.name in LOCKS
    }

    def is_lock(node: ast.AST) -> bool:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="threading"), attr=name)):
                return name in LOCKS
            case ast.Call(func=ast.Name(id=name)):
                return name in imported
        return False

    return [
        outer.name if isinstance(outer, ast.ClassDef) else path.name
        for outer in tree.body
        for node in ast.walk(outer)
        if is_lock(node)
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "import threading\nclass Pace:\n    def __init__(self) -> None:\n        self._at = threading.RLock()",
            ["Pace"],
        ),
        ("from threading import Lock as Held\nheld = Held()", ["code.py"]),
        ("import asyncio\nlock = asyncio.Lock()", []),
    ],
)
def test_a_lock_of_threads_is_seen(tmp_path: Path, code: str, found: list[str]) -> None:
    path = tmp_path / "code.py"
    path.write_text(code)
    assert _locks(path) == found


def test_a_node_has_the_locks_that_the_architecture_names() -> None:
    told = re.search(r"has one lock, in `(\w+)` of\s+`([\w/.]+)`", _section("Threads"))
    assert told is not None
    of_node = [path for path in SHIPPED if path.relative_to(ROOT).parts[0] != "client"]
    assert [(name, str(path.relative_to(ROOT))) for path in of_node for name in _locks(path)] == [told.groups()]


# --- seams between the packages --------------------------------------------------------------------------------------


def test_the_seams_are_described_with_the_names_that_they_have() -> None:
    text = _section("Seams between the packages")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    described = [
        name for block in blocks for name in re.findall(r"^ *(?:class|(?:async )?def) (\w+)", block, re.MULTILINE)
    ]
    described += [
        name
        for block in blocks
        for name in re.findall(r"^    ((?:\w+: [^;#]+(?:; )?)+)", block, re.MULTILINE)
        for name in re.findall(r"(\w+): ", name)
    ]
    assert len(described) > 60
    defined = frozenset().union(*map(_defined, SHIPPED))
    assert [name for name in described if name not in defined] == []


# --- rooms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["cluster", "raft", "store", "client/keelmq", "spark/keelmq_spark"])
def test_the_rooms_name_every_module_and_folder_of_a_package(package: str) -> None:
    rooms = _section("Rooms")
    named = set(re.findall(r"`([\w.]+/?)`", rooms[rooms.index(f"| `{package}/`, from the top") :].split("\n\n", 1)[0]))
    folders = {f"{path.parent.name}/" for path in (ROOT / package).glob("*/*.py")}
    modules = {path.name for path in (ROOT / package).glob("*.py")} - {"__init__.py"}
    assert (folders | modules) - named == set()
