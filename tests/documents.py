"""The code in documents, for tests that run what a reader would copy: fenced blocks with their language; and the tests
that documents name.
"""

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_TEST: Final = re.compile(r"`([\w/]+\.py)::(\w+)`")
TESTS: Final = Path(__file__).parent


class Block(NamedTuple):
    """A fenced block. `before` is the prose between the block before it and this one."""

    language: str
    text: str
    before: str


def blocks_of(document: Path) -> list[Block]:
    """Return the fenced blocks of a Markdown file in their order."""
    text, end = document.read_text(), 0
    found: list[Block] = []
    for match in BLOCK.finditer(text):
        found.append(Block(match[1], match[2], text[end : match.start()]))
        end = match.end()
    return found


def named_tests(text: str) -> dict[str, set[str]]:
    """Return the tests that a text names, as in `unit/test_project.py::test_names`, by file."""
    found: dict[str, set[str]] = {}
    for file, name in NAMED_TEST.findall(text):
        found.setdefault(file, set()).add(name)
    return found


def missing_tests(named: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return those of the named tests that do not exist, by file."""
    missing = {file: names - _functions(TESTS / file) for file, names in named.items()}
    return {file: names for file, names in missing.items() if names}


def _functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
