"""Rules that every source file keeps: nothing unsafe, nothing hidden, nothing too long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pams_mil

ROOT = Path(pams_mil.__file__).parent
PROJECT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.rglob("*.py"))
ALL = SOURCES + sorted((PROJECT / "tests").rglob("*.py")) + sorted((PROJECT / "benchmarks").rglob("*.py"))
TESTS = sorted((PROJECT / "tests").rglob("test_*.py"))

MOST_LINES = 400
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def breaches(source: str, *, cli: bool = False) -> list[str]:
    """What a source text does that it must not do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            found.append("assert")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            found += _bad_call(node, cli=cli)
        elif isinstance(node, ast.ExceptHandler) and _catches_all(node):
            line = source.splitlines()[node.lineno - 1]
            found += [] if "#" in line else [f"line {node.lineno} catches everything without a reason"]
    if re.search(r"#.*\b(TODO|FIXME|XXX)\b", source):
        found.append("TODO")
    return found


def _catches_all(node: ast.ExceptHandler) -> bool:
    """Whether a handler swallows or translates any error; one that cleans up and raises it again does not."""
    if isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def without_assertion(source: str) -> list[str]:
    """Tests of a module that assert nothing, neither themselves nor through a function of theirs."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    asserting = {f.name for f in functions if any(isinstance(node, ast.Assert) for node in ast.walk(f))}
    speaking = ("assert", "check", "raises", "warns", "fail")
    silent = []
    for function in functions:
        if not function.name.startswith("test_") or function.name in asserting:
            continue
        calls = [ast.unparse(node.func).split(".")[-1] for node in ast.walk(function) if isinstance(node, ast.Call)]
        if not any(name in asserting or name.startswith(speaking) for name in calls):
            silent.append(function.name)
    return silent


def test_every_test_can_fail():
    silent = {str(path.relative_to(PROJECT)): without_assertion(path.read_text("utf-8")) for path in TESTS}
    assert {name: tests for name, tests in silent.items() if tests} == {}


def test_rules_on_tests_and_handlers_can_fail():
    assert without_assertion("def test_a():\n    run()\n") == ["test_a"]
    assert without_assertion("def run():\n    assert 1\ndef test_a():\n    run()\n") == []
    bare = "try:\n    f()\nexcept {}:\n    g()\n"
    for kind in ("Exception", "(OSError, Exception) as error", "BaseException"):
        assert breaches(bare.format(kind)) == ["line 3 catches everything without a reason"]
    assert breaches(bare.format("OSError")) == []
    assert breaches(bare.replace("{}:", "Exception:  # g tells of it")) == []
    assert breaches(bare.format("BaseException") + "    raise\n") == []


def _bad_call(node: ast.Call, *, cli: bool) -> list[str]:
    name = ast.unparse(node.func)
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in FORBIDDEN_CALLS or (name == "print" and not cli) or name.endswith("logging.basicConfig"):
        return [name]
    if name.endswith(("torch.load", "_torch.load")) and options.get("weights_only") != "True":
        return ["torch.load without weights_only=True"]
    if name.endswith("yaml.load") or name.endswith(("yaml.unsafe_load", "yaml.full_load")):
        return [name]
    if options.get("allow_pickle", "False") != "False" or options.get("shell", "False") != "False":
        return ["allow_pickle or shell"]
    return []


INERT_UNPICKLER = "cohorts/cifar10_bags.py"
"""The only file that may import pickle: for a class whose `find_class` gives nothing of another module."""


def test_nothing_unsafe_and_nothing_unfinished():
    wrong = {}
    for path in SOURCES:
        name = str(path.relative_to(ROOT).as_posix())
        source = path.read_text("utf-8")
        found = breaches(source, cli=name.startswith("cli/"))
        wrong[name] = [breach for breach in found if (name, breach) != (INERT_UNPICKLER, "pickle")]
    assert {name: found for name, found in wrong.items() if found} == {}
    used = re.findall(r"\bpickle\.(\w+)", (ROOT / INERT_UNPICKLER).read_text("utf-8"))
    assert used == ["Unpickler"]


def test_the_rules_can_fail():
    for line in (
        "assert x", "import pickle", "from pickle import loads", "eval('1')", "exec('1')", "print(1)", "yaml.load(f)",
        "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f, allow_pickle=True)", "x = 1  # TODO later",
        "subprocess.run(c, shell=True)", "yaml.unsafe_load(f)", "logging.basicConfig()", "import dill.source",
    ):  # fmt: skip
        assert breaches(line), line


def test_what_is_allowed():
    assert breaches("torch.load(f, weights_only=True)\nyaml.safe_load(f)\nmodel.eval()\nre.compile('x')") == []
    assert breaches("print(1)", cli=True) == []


def test_no_file_is_too_long():
    long = {
        str(path.relative_to(PROJECT)): lines
        for path in ALL
        if (lines := len(path.read_text("utf-8").splitlines())) > MOST_LINES
    }
    assert long == {}


def test_no_file_has_a_vague_name():
    assert [str(path) for path in SOURCES if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES] == []


def test_every_module_says_what_it_is_for():
    texts = {path: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in SOURCES}
    assert [str(path) for path, text in texts.items() if not text] == []
