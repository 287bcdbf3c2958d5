"""Static rules for the source of Chimera: forbidden code, and the places where code may be loaded by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import chimera

SOURCE = Path(chimera.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "templates" not in path.parts)  # users' projects
PICKLING = "core/pickling.py"  # says why each use is right
LOADERS = frozenset({
    "_pickle", "cloudpickle", "copyreg", "dill", "joblib", "jsonpickle", "marshal", "pandas.io.pickle", "pickle", "shelve",
    "torch.hub", "torch.package", "yaml",
})  # fmt: skip
BUILTINS = frozenset(
    {"__import__", "eval", "exec"}
)  # compiled code needs one of them, so of ``compile`` only calls count
Nodes = list[ast.AST]
RUNNERS = frozenset({"builtins", "codeop", "pty", "runpy"})
RUN = {
    "engines/http/failure.py": "finds a class by name, and takes nothing but an exception",
    "engines/parent_watch.py": "runs the file that its command line names",
    "nodes/program.py": "runs the file that the user names",
}
LOADING_CALLS = frozenset(
    {"joblib.load", "read_pickle", "torch.jit.load", "torch.load", "yaml.load", "yaml.unsafe_load"}
)
BY_NAME = frozenset(
    {"exec_module", "find_spec", "import_module", "load_module", "load_object", "spec_from_file_location"}
)
REVIEWED = {
    "__init__.py": "names of the package's own table",
    "cli/demo.py": "a constant",
    "cli/infer_cluster.py": "a constant",
    "cli/list.py": "the table of the registries",
    "cli/new.py": "constants",
    "codecs/kernels/__init__.py": "constants",
    "core/device.py": "constants",
    "core/extras.py": "constants",
    "core/imports.py": "what the driver preloads: its fork server's command line, or a message in its own job of MPI",
    "core/kernels.py": "a constant of the caller",
    "core/file_modules.py": "a file that the user names, through load_object; workers find files on their own import path only",
    "core/named_places.py": "the folder of a package that the user names, without importing it",
    "core/registry.py": "load_object itself, which refuses names of others; the families' own packages",
    "data/huggingface.py": "a transform that the user names; by-path names of others go through load_object",
    "data/row_labels.py": "a function of labels or groups that the user names; by-path names of others go through load_object",
    "data/image_folder.py": "a transform that the user names; by-path names of others go through load_object",
    "data/scikit_learn.py": "a constant",
    "embeddings/files.py": "a constant",
    "engines/http/engine.py": "a constant",
    "engines/ray/groups/nccl_link.py": "constants",
    "engines/threads.py": "a constant",
    "inference/preload.py": "whether a module that the operator preloads is there: the name's first part, without importing it",
    "inference/worker/forked.py": "what the operator preloads; constants of registered kinds",
    "inference/models/factory.py": "a factory that the user names; by-path names of others go through load_object",
    "jobs/files/bundle.py": "the function of a submission, in the process of the job, after its token was checked",
    "jobs/scheduling/requirements.py": "whether a module of a submission is there: the name's first part, without importing it",
    "inference/models/text_generation.py": "a constant",
    "inference/models/pipelines.py": "a constant; the source of the tasks is read and not run",
    "jobs/supervisor.py": "constants",
    "models/conversion.py": "constants",
    "models/huggingface/adapters.py": "a constant",
    "models/huggingface/__init__.py": "a step that the user names; by-path names of others go through load_object",
    "models/losses.py": "a loss that the user names; by-path names of others go through load_object",
    "models/metrics.py": "a metric that the user names; by-path names of others go through load_object",
    "models/word2vec/__init__.py": "a constant",
    "models/word2vec/kernels/__init__.py": "a constant",
    "federation/data/learner.py": "the library that a registered model names",
    "nodes/__init__.py": "names of the package's own table",
    "nodes/workers/__init__.py": "names of the package's own table",
    "training/artifacts/rebuild.py": "a factory that a run's folder names, if the caller trusts its code",
    "training/experiment/resolve.py": "a constant",
    "training/optimizers/flat_optimizer.py": "an optimizer that the user names; by-path names of others go through load_object",
    "training/optimizers/optimizer.py": "whether torch is installed, without importing it",
    "training/privacy/settings.py": "constants",
}  # fmt: skip


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` of an attribute of names, with the usual short names of libraries written out."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return {"np": "numpy", "pd": "pandas"}.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports, and the names from them."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return []


def is_in(name: str, modules: frozenset[str]) -> bool:
    return any(f".{module}." in f".{name}." for module in modules)


def runs(nodes: Nodes) -> bool:
    """Whether a module can run a file or name of Python's own."""
    return any(is_in(name, RUNNERS) for node in nodes for name in imported(node))


def loads_code(nodes: Nodes) -> Iterator[str]:
    """Yield what in a module could run code that data say."""
    for node in nodes:
        for name in imported(node):
            if is_in(name, LOADERS | LOADING_CALLS) or name.rpartition(".")[2] in BUILTINS:
                yield f"{node.lineno}: import of {name}"
        if isinstance(node, ast.Name) and node.id in BUILTINS:
            yield f"{node.lineno}: {node.id}"
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if is_in(name, LOADERS | LOADING_CALLS) or node.attr in {"read_pickle", "__builtins__"}:
                yield f"{node.lineno}: {name}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_in(node.value, LOADERS | BUILTINS):
            yield f"{node.lineno}: the name {node.value!r} as a string"
        if isinstance(node, ast.Call) and dotted(node.func) == "compile":
            yield f"{node.lineno}: compile"
        if isinstance(node, ast.Call):
            options = {keyword.arg: keyword.value for keyword in node.keywords}
            pickles = options.get("allow_pickle")
            without = isinstance(pickles, ast.Constant) and pickles.value is False
            if not without and (pickles is not None or dotted(node.func) == "numpy.load"):
                yield f"{node.lineno}: {dotted(node.func)} without allow_pickle=False"


def uses_names(nodes: Nodes) -> bool:
    """Whether a module imports something by a name that it computes or reads."""
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(dotted(function).rpartition(".")[2] in BY_NAME for function in called)


def checks(nodes: Nodes) -> Iterator[str]:
    """Yield asserts that do more than tell a type: Python leaves them out under -O."""
    for node in nodes:
        if isinstance(node, ast.Assert):
            test = node.test
            narrows = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)
            of_type = isinstance(test, ast.Call) and dotted(test.func) == "isinstance"
            if not narrows and not of_type:
                yield f"{node.lineno}: assert {ast.unparse(test)}"


def nodes_of(source: str) -> Nodes:
    """Return the nodes of a source, without the contexts that each name has (`ast.Load` and others)."""
    return [node for node in ast.walk(ast.parse(source)) if not isinstance(node, ast.expr_context)]


@pytest.fixture(scope="module")
def modules() -> dict[str, Nodes]:
    return {path.relative_to(SOURCE).as_posix(): nodes_of(path.read_text(encoding="utf-8")) for path in MODULES}


def test_code_that_loads_pickles_is_in_one_module(modules: dict[str, Nodes]) -> None:
    found = {name: list(loads_code(nodes)) for name, nodes in modules.items()}
    assert set(found.pop(PICKLING))
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_the_pickling_module_justifies_each_importer(modules: dict[str, Nodes]) -> None:
    why = ast.get_docstring(modules[PICKLING][0])  # type: ignore[arg-type]
    users = {name for name, nodes in modules.items() for node in nodes if "chimera.core.pickling" in imported(node)}
    bullets = re.findall(r"^- (.*?):", why or "", re.MULTILINE)
    named = [place for bullet in bullets for place in re.findall(r"`([a-z_/]+)`", bullet)]
    assert users
    assert [name for name in users if not any(name.startswith(place) for place in named)] == []
    assert [place for place in named if not any(name.startswith(place) for name in users)] == []


def test_each_dynamic_import_is_reviewed(modules: dict[str, Nodes]) -> None:
    assert {name for name, nodes in modules.items() if uses_names(nodes)} == set(REVIEWED)
    assert {name for name, nodes in modules.items() if runs(nodes)} == set(RUN)


def test_asserts_narrow_types_only(modules: dict[str, Nodes]) -> None:
    kit = "testing/"  # pytest runs it
    found = {name: list(checks(nodes)) for name, nodes in modules.items() if not name.startswith(kit)}
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_each_security_exception_has_a_reason() -> None:
    lines = [
        (path, line) for path in MODULES for line in path.read_text().splitlines() if re.search(r"#.*\bnoqa\b", line)
    ]
    assert any("S603" in line for _, line in lines)
    for path, line in lines:
        said = line.partition("# noqa")[2]
        assert re.match(r": [A-Z]+\d+", said), f"{path}: {line}"
        assert not re.match(r".*\bS\d{3}", said) or re.match(r": S\d{3} - \w+", said), f"{path}: {line}"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "from torch import load", "import cloudpickle as c", "import joblib",
        "from joblib import load", "import yaml", "eval('1')", "f = exec", "__import__('os')", "compile('1', '', 'eval')",
        "torch.load(file)", "torch.jit.load(file)", "pd.read_pickle(file)", "from builtins import eval",
        "getattr(torch, 'x')(import_module('pickle'))", "np.load(file)", "np.load(file, allow_pickle=True)",
        "numpy.lib.npyio.load(file, allow_pickle=flag)", "x = ray.cloudpickle.loads",
    ],
)  # fmt: skip
def test_the_rules_detect_forbidden_code(source: str) -> None:
    assert list(loads_code(nodes_of(source)))


@pytest.mark.parametrize("source", ["import_module(name)", "importlib.util.find_spec(x)", "registry.load_object(x)"])
def test_the_rules_detect_dynamic_imports(source: str) -> None:
    assert uses_names(nodes_of(source))
    assert runs(nodes_of("import runpy"))


def test_the_rules_detect_asserts_that_validate() -> None:
    assert list(checks(nodes_of("assert size < limit")))
    assert not list(checks(nodes_of("assert x is not None")))
