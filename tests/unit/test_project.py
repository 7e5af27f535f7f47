"""Rules of the whole project: the documentation points at existing things; files, functions, classes and folders stay
readable. `lint-imports` holds the layers, and that no imports form a circle.
"""

import ast
import itertools
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

import keelmq
from tests.documents import BLOCK, blocks_of
from tests.requirements import MAKE

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70
CONSTRUCTOR_LINES_MAX = 70
"""Maximum number of lines of a constructor with its parameters: beyond it a class has more parts than one can see."""
CONSTRUCTOR_POSITIONAL_MAX = 7
FOLDER_MODULES_MAX = 25
"""Maximum number of modules that lie in one folder of the code, with its `__init__.py`."""
NO_SUBJECT = re.compile(
    "(?:of|in|on|at|by|for|from|with|without|to|into|onto|over|under|between|through|after|before|as|about|against|"
    "among|behind|beside|beyond|during|except|inside|outside|near|per|since|than|towards?|until|upon|within|via|what|"
    "how|where|when|whether|which|who|whom|whose|that|those|these|this|it|its|they|their|them|he|she|his|her)[\\s.,:;]",
    re.IGNORECASE,
)
"""Prepositions and pronouns: a docstring that begins with one leaves its subject to be guessed."""
THIRD_PERSON = re.compile(
    "(?:Add|Allocate|Appl(?=ie)|Begin|Check|Close|Compare|Count|Cut|End|Forget|Give|Make|Open|Raise|Read|Remove|Rename|"
    "Report|Reserve|Return|Send|Set|Start|Stop|Store|Sync|Take|Tell|Verif(?=ie)|Wait|Write|Yield)(?:ie)?s "
)
"""Verbs that a function's docstring has in the imperative: "Return", not "Returns"."""
CODE_FOLDERS = ("cluster", "raft", "store", "client", "spark", "deploy", "examples", "tests")

PACKAGES = (ROOT, ROOT / "client", ROOT / "spark")
DOCUMENTS = sorted([*(path for folder in PACKAGES for path in folder.glob("*.md")), *(ROOT / "docs").glob("**/*.md")])
SOURCES = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
HEADING = re.compile("^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(
    r"(?<![\w./-])(?:[\w-]+/)*(?:cluster|raft|store|client|spark|deploy|examples|tests)/[\w/-]+\.(?:py|sh|md)\b"
)
SUBMODULES = ("inbox", "outbox", "sql")
PATH_ROOTS = (ROOT, ROOT / "tests", ROOT / "tests" / "unit")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Source(NamedTuple):
    """A file of the code, and all nodes of its syntax tree."""

    name: str
    text: str
    nodes: list[ast.AST]


@pytest.fixture(scope="module", params=sorted({path.parent for path in SOURCES}), ids=name_of)
def sources(request: pytest.FixtureRequest) -> list[Source]:
    """Return the files of a folder, parsed once for all tests. One test per file costs more than its work."""
    paths = [path for path in SOURCES if path.parent == request.param]
    texts = {path: path.read_text() for path in paths}
    return [Source(name_of(path), text, list(ast.walk(ast.parse(text)))) for path, text in texts.items()]


def wrong_paths(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the paths that lead to no file, by the name of what names them."""
    found = {name: [path for path in PATH.findall(text) if not _exists(path)] for name, text in texts}
    return {name: paths for name, paths in found.items() if paths}


def _exists(path: str) -> bool:
    """Return whether there is such a file; `tests/` and `tests/unit/` may be left out."""
    return any((root / path).exists() for root in PATH_ROOTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = [target.split("#")[0] for target in LINK.findall(document.read_text())]
    local = [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (document.parent / target).exists()] == []


@cache
def anchors_of(document: Path) -> set[str]:
    """Return the names of a document's headings in links, made as the hosts of repositories make them."""
    counts: Counter[str] = Counter()
    names: set[str] = set()
    for heading in HEADING.findall(BLOCK.sub("", document.read_text())):
        text = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading)
        name = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        names.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return names


def wrong_anchors(document: Path, text: str) -> list[str]:
    """Return the links in the text of a document to headings that no document has."""
    links = [link.partition("#") for link in LINK.findall(text) if "#" in link and "://" not in link]
    targets = [(path, (document.parent / path) if path else document, anchor) for path, _, anchor in links]
    return [
        f"{path}#{anchor}"
        for path, target, anchor in targets
        if target.suffix == ".md" and target.exists() and anchor not in anchors_of(target)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_to_headings_lead_to_headings(document: Path) -> None:
    assert wrong_anchors(document, document.read_text()) == []


def test_a_link_to_no_heading_is_noticed() -> None:
    text = "[a](#calls) [b](#no-such-call) [c](log-format.md#batch-headers) [d](log-format.md#no-headers)"
    assert wrong_anchors(ROOT / "docs" / "http-api.md", text) == ["#no-such-call", "log-format.md#no-headers"]


@pytest.mark.parametrize("text", [*DOCUMENTS, ROOT / "pyproject.toml", ROOT / "Makefile"], ids=name_of)
def test_a_path_that_a_document_names_leads_to_a_file(text: Path) -> None:
    """The changes of former versions name the files of that time."""
    if text.name != "CHANGELOG.md":
        assert wrong_paths([(text.name, text.read_text())]) == {}


def test_a_path_that_the_code_names_leads_to_a_file(sources: list[Source]) -> None:
    assert wrong_paths((source.name, source.text) for source in sources) == {}


def test_a_file_is_one_concept_of_readable_size(sources: list[Source]) -> None:
    for source in sources:
        assert len(source.text.splitlines()) <= FILE_LINES_MAX, source.name
        functions = [node for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        # A long list of parameters is documentation; what has to fit a screen is the body.
        long = [f.name for f in functions if (f.end_lineno or 0) - f.body[0].lineno + 1 > FUNCTION_LINES_MAX]
        assert long == [], source.name


def test_a_class_is_composed_of_parts_that_can_be_seen_at_once(sources: list[Source]) -> None:
    for source in sources:
        functions = [node for node in source.nodes if isinstance(node, ast.FunctionDef)]
        constructors = [node for node in functions if node.name == "__init__"]
        lines = [(node.end_lineno or 0) - node.lineno + 1 for node in constructors]
        assert [each for each in lines if each > CONSTRUCTOR_LINES_MAX] == [], source.name
        positional = [len(node.args.posonlyargs) + len(node.args.args) - 1 for node in constructors]
        assert [each for each in positional if each > CONSTRUCTOR_POSITIONAL_MAX] == [], source.name


def test_a_folder_of_the_code_has_few_modules() -> None:
    modules = [path for path in SOURCES if not path.is_relative_to(ROOT / "tests")]
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {folder: count for folder, count in counts.items() if count > FOLDER_MODULES_MAX} == {}


def test_a_docstring_begins_with_a_verb_or_a_noun(sources: list[Source]) -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for source in sources:
        texts = [text for node in source.nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]
        texts.extend(text for node in source.nodes for text in _docstrings_of_fields(node))
        assert [text for text in texts if NO_SUBJECT.match(text)] == [], source.name


def test_a_function_is_told_what_to_do(sources: list[Source]) -> None:
    """The docstrings of functions are imperatives; a test's may be a sentence about the product."""
    for source in sources:
        functions = [node for node in source.nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        texts = [ast.get_docstring(node) or "" for node in functions if not node.name.startswith("test_")]
        assert [text for text in texts if THIRD_PERSON.match(text)] == [], source.name


def _docstrings_of_fields(node: ast.AST) -> Iterator[str]:
    """Yield the strings that follow assignments in a class or a module."""
    body = node.body if isinstance(node, (ast.Module, ast.ClassDef)) else []
    for assignment, following in itertools.pairwise(body):
        if isinstance(assignment, (ast.Assign, ast.AnnAssign)) and isinstance(following, ast.Expr):
            text = ast.literal_eval(following.value) if isinstance(following.value, ast.Constant) else None
            if isinstance(text, str):
                yield text


def test_every_make_target_is_listed_with_what_it_does() -> None:
    MAKE.require()
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    listed = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    shown = {words[0] for line in listed.splitlines()[1:] if len(words := line.split(maxsplit=1)) == 2}
    assert shown == set(phony.split())


def test_no_test_is_judged_by_a_clock_or_skipped_unsaid(sources: list[Source]) -> None:
    """Hypothesis' deadlines are off in tests/conftest.py, and tests/requirements.py decides what is skipped."""
    own = {"shutil.which", "os.geteuid", "os.getuid", "pytest.skip", "pytest.mark.skipif", "pytest.importorskip"}
    for source in (source for source in sources if source.name.startswith("tests/")):
        calls = [node for node in source.nodes if isinstance(node, ast.Call)]
        for call in (call for call in calls if _dotted(call.func) == "settings"):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert "deadline" not in given, source.name
            checks = given.get("suppress_health_check", "HealthCheck.too_slow")
            assert "HealthCheck.too_slow" in checks or checks == "list(HealthCheck)", source.name
        if Path(source.name).stem not in ("requirements", "test_requirements"):
            assert own.isdisjoint(map(_dotted, (call.func for call in calls))), source.name


def test_results_are_written_by_the_report(sources: list[Source]) -> None:
    """A `RESULT` that is printed by hand may not be read back: deploy/reporting has the one way to write it."""
    for source in (source for source in sources if not source.name.startswith("deploy/reporting/")):
        for call in (node for node in source.nodes if isinstance(node, ast.Call) and _dotted(node.func) == "print"):
            texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
            assert not any(str(text).startswith("RESULT") for text in texts), f"{source.name}:{call.lineno}"


def _dotted(node: ast.expr) -> str:
    """Return the name as it is written, empty for what is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def test_hypothesis_sets_no_time_limit() -> None:
    assert settings().deadline is None
    assert settings().print_blob


@pytest.mark.parametrize("readme", [ROOT / "README.md", ROOT / "client" / "README.md"], ids=name_of)
def test_the_readme_examples_use_names_that_the_sdk_has(readme: Path) -> None:
    """tests/demo/test_local_cluster.py runs the examples of the README."""
    trees = [ast.parse(block.text) for block in blocks_of(readme) if block.language == "python"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "keelmq"
    ]
    used += [
        name.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "keelmq"
        for name in node.names
        if name.name not in SUBMODULES
    ]
    assert used
    assert [name for name in used if not hasattr(keelmq, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_every_package_has_the_license_and_a_readme_for_its_page(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert (project["license-files"], project["readme"]) == (["LICENSE"], "README.md")
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (package / "README.md").read_text().startswith("# ")


def test_nobody_is_told_to_install_the_package_of_a_stranger() -> None:
    """No index has the packages of KeelMQ, so that pip would take what anybody has published under their names."""
    told = re.compile(r"""pip install(?:(?:[ \t]+[^\s#`]+)*?[ \t]+|\s+)['"]?keelmq""")
    product = [path for path in SOURCES if "tests" not in path.relative_to(ROOT).parts]
    assert [name_of(path) for path in (*DOCUMENTS, *product) if told.search(path.read_text())] == []
    for command in ("pip install 'keelmq[cli]'", "bin/pip install x keelmq-spark", "pip install\n'keelmq[s3]'"):
        assert told.search(command)
    assert not told.search("pip install './client[cli]'   # keelmq\nkeelmq topic list")


def test_the_readme_installs_what_there_is() -> None:
    """The README's paths are packages of the tree, with the extras that it names. Installing them takes a package
    index.
    """
    commands = [block.text for block in blocks_of(ROOT / "README.md") if "bin/pip" in block.text]
    named = re.findall(r"(?<=[\s'])(\.(?:/\w+)?)(?:\[([\w,]+)\])?(?=[\s'])", "\n".join(commands))
    assert named == [(".", ""), ("./client", "sql,cli")]
    for path, extras in named:
        project = tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]
        assert set(filter(None, extras.split(","))) <= set(project.get("optional-dependencies", ()))
