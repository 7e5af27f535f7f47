"""Names that the SDK imports when they are used: type checkers and programs know the same ones."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import keelmq
import keelmq.admin


@pytest.mark.parametrize("package", [keelmq, keelmq.admin], ids=lambda package: package.__name__)
def test_type_checkers_and_programs_know_the_same_names(package: ModuleType) -> None:
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text())
    shown = {
        alias.asname: f"{node.module}".removeprefix(f"{package.__name__}.")
        for block in tree.body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert shown == package._MODULES
    assert all(hasattr(package, name) for name in package.__all__)
