"""The house rules that no linter knows. An exemption needs a reason, and the lists only shrink."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "exaserve"
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
PURE = (
    "domain",
    "models",
    "scheduling",
    "health",
    "perfmodel",
    "planning",
    "preflight",
    "report",
    "control",
    "serving",
    "workload",
)
IMPURE_MODULES = frozenset(
    {"asyncio", "concurrent", "datetime", "http", "httptools", "httpx", "io", "logging", "multiprocessing", "os"}
    | {"pathlib", "prometheus_client", "secrets", "select", "selectors", "signal", "socket", "ssl", "starlette"}
    | {"subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid", "uvicorn", "uvloop"}
)
GLOBAL_RANDOM = frozenset(
    {"choice", "choices", "gauss", "randint", "random", "randrange", "sample", "seed", "shuffle", "uniform"}
)
IMPURE_BUILTINS = frozenset({"breakpoint", "exec", "eval", "input", "open", "print"})

# Path of the file (from src/exaserve) to the reason. Only shrinks.
LONG_FILES: dict[str, str] = {}
# "file::function" to the reason. Only shrinks.
LONG_FUNCTIONS: dict[str, str] = {}

SOURCES = sorted(SOURCE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def pure_sources() -> list[Path]:
    return [path for path in SOURCES if name(path).split("/")[0] in PURE]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring: explaining is free."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert len(pure_sources()) > 10


def test_files_are_short() -> None:
    long = {name(path): lines for path in SOURCES if (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX}
    assert {file: lines for file, lines in long.items() if file not in LONG_FILES} == {}
    assert set(LONG_FILES) <= set(long), "an exemption is not needed any more: remove it"


def test_functions_are_short() -> None:
    long = {
        f"{name(path)}::{node.name}": code_lines(node)
        for path in SOURCES
        for node in functions(ast.parse(path.read_text()))
        if code_lines(node) > FUNCTION_LINES_MAX
    }
    assert {each: lines for each, lines in long.items() if each not in LONG_FUNCTIONS} == {}
    assert set(LONG_FUNCTIONS) <= set(long), "an exemption is not needed any more: remove it"


@pytest.mark.parametrize("path", pure_sources(), ids=name)
def test_pure_rooms_touch_nothing(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in IMPURE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [module] if module.split(".")[0] in IMPURE_MODULES else []
            found += [
                f"random.{alias.name}" for alias in node.names if module == "random" and alias.name in GLOBAL_RANDOM
            ]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "random" and node.attr in GLOBAL_RANDOM:
                found.append(f"random.{node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            found.append(node.func.id)
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.append("async")
    assert found == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if not tree.body:
        return
    assert ast.get_docstring(tree), "a module begins with a docstring"
    exported = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert exported or not public, "__all__ is missing"
    if exported:
        assert isinstance(exported[0], ast.List | ast.Tuple)
        listed = [element.value for element in exported[0].elts if isinstance(element, ast.Constant)]
        assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_module_state_and_no_globals(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Global), f"line {node.lineno}: `global`"


def test_a_class_name_stands_for_one_thing() -> None:
    where: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(name(path))
    assert {each: files for each, files in where.items() if len(files) > 1} == {}


def imports() -> dict[str, set[str]]:
    """File → files of ours that it imports, wherever in it, under ``TYPE_CHECKING`` as well."""
    files = {".".join(("exaserve", *path.relative_to(SOURCE).with_suffix("").parts)): name(path) for path in SOURCES}
    files = {module.removesuffix(".__init__"): file for module, file in files.items()}
    found: dict[str, set[str]] = {}
    for module, file in files.items():
        wanted = found[file] = set()
        for node in ast.walk(ast.parse((SOURCE / file).read_text())):
            if isinstance(node, ast.Import):
                wanted |= {files[alias.name] for alias in node.names if alias.name in files}
            elif isinstance(node, ast.ImportFrom) and node.module in files:
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                wanted |= {files.get(each, files[node.module]) for each in inner}
        wanted.discard(files[module])
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of files each of which reaches all others of its set."""
    reach = {}
    for start in graph:
        seen: set[str] = set()
        open_ends = [start]
        while open_ends:
            ahead = graph[open_ends.pop()] - seen
            seen |= ahead
            open_ends += ahead
        reach[start] = seen
    found: list[set[str]] = []
    for file, ahead in reach.items():
        if file in ahead and not any(file in circle for circle in found):
            found.append({other for other in ahead if file in reach[other]})
    return found


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]


def test_files_do_not_import_each_other_in_a_circle() -> None:
    assert circles(imports()) == []


# Joined at run time so that this file does not find itself.
_PLACES = ["/" + "root/", "/" + "home/[a-z]", "/" + "work/", "/" + "opt/wheels", "/tmp/" + "team"]
_REGISTRIES = ["py" + r"pi\.org", "python" + r"hosted\.org", "index" + "-url"]
_LEFTOVERS = ["TO" + "DO", "FIX" + "ME", "XX" + "X:", "git" + "hub\\.com/[^ ]*/issues", "sk-" + "[A-Za-z0-9]{20}"]
_REQUIREMENTS = [
    r"\([AE" + r"X]\d{1,2}[a-z]?\b[^()]{0,12}\)"
]  # ids of another document, which no reader of this one has
_TRACES = re.compile("|".join(_PLACES + _REGISTRIES + _LEFTOVERS + _REQUIREMENTS))


def committed_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        return []
    return [ROOT / file for file in listed.stdout.decode().split("\0") if file and (ROOT / file).is_file()]


def test_no_committed_file_names_a_person_a_machine_or_a_registry() -> None:
    found = []
    for path in committed_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{i}: {line.strip()[:100]}"
            for i, line in enumerate(text.splitlines(), 1)
            if _TRACES.search(line)
        ]
    assert found == []
