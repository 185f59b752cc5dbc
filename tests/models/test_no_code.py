"""What the product's own source may not contain: ways for a file or a template to become code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kvops

SOURCE = Path(kvops.__file__).parent
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "runpy",
}
UNSAFE_CALLS = {"torch.load", "numpy.load", "np.load", "eval", "exec", "__import__"}
UNSAFE_YAML = {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "unsafe_load", "full_load"}
ENVIRONMENTS = {
    "Environment",
    "Template",
    "SandboxedEnvironment",
    "ImmutableSandboxedEnvironment",
    "NativeEnvironment",
}


def trees() -> Iterator[tuple[Path, ast.AST]]:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        yield path.relative_to(SOURCE), ast.parse(path.read_text())


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_nothing_that_runs_code_from_data_is_imported_or_called() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            found += [
                f"{path}: {name}" for name in imported(node) if name.split(".")[0] in UNSAFE_MODULES
            ]
            if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS:
                found.append(f"{path}: {ast.unparse(node.func)}")
            if (
                isinstance(node, ast.Attribute)
                and ast.unparse(node.value) == "yaml"
                and node.attr in UNSAFE_YAML
            ):
                found.append(f"{path}: yaml.{node.attr}")
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                found.append(f"{path}: trust_remote_code")
    assert found == []


def test_templates_of_others_are_made_in_the_sandbox_module_alone() -> None:
    """`pages` makes those of our own reports: out of the package, and never out of a string."""
    found = set()
    for path, tree in trees():
        if not any("jinja2" in name for node in ast.walk(tree) for name in imported(node)):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jinja2"):
                found |= {str(path) for alias in node.names if alias.name in ENVIRONMENTS}
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).removeprefix("jinja2.") in ENVIRONMENTS
            ):
                found.add(str(path))
    assert found == {"models/sandbox.py", "pages.py"}
    ours = (SOURCE / "pages.py").read_text()
    assert "PackageLoader" in ours
    assert "autoescape=True" in ours
    assert "from_string" not in ours
