"""Tests of the package layout: top-level modules, module names, test modules, and imports of FastSHAP.

import-linter checks the direction of imports: see ``[tool.importlinter]`` in pyproject.toml and ``make check``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "fastshapley"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

MOST_AT_THE_TOP = 14
DOORS = {"client.py", "distributed.py", "players.py"}  # Modules that re-export public names from a folder.
ABOVE_EXPLAINER = ("__init__.py", "explainer.py", "baselines/", "cli/", "interop/", "paper/")

# Modules that need no tests of their own.
WITHOUT_TESTS = {
    "__main__.py": "calls cli.main; tests/test_wheel.py runs it",
    "client.py": "a door; tests/test_public_api.py imports it",
    "distributed.py": "a door; tests/test_public_api.py imports it",
    "players.py": "a door; tests/test_public_api.py imports it",
    "version.py": "holds one string; tests/test_docs.py compares it with CITATION.cff",
}

# Modules that are covered by the test module of a family of small modules.
TESTED_WITH = {
    "baselines/gradients.py": "baselines/test_baselines.py",
    "baselines/kernel_shap.py": "baselines/test_baselines.py",
    "bulk/csv_files.py": "bulk/test_file_parts.py",
    "bulk/ray_explain.py": "bulk/test_ray_cluster.py",
    "bulk/ray_fit.py": "bulk/test_ray_cluster.py",
    "cli/demo_command.py": "test_public_api.py",
    "cli/demo_images.py": "test_public_api.py",
    "cli/demo_table.py": "cli/test_commands.py",
    "cli/explain_command.py": "bulk/test_job.py",
    "cli/export_command.py": "export/test_onnx.py",
    "cli/page_command.py": "serving/test_static_page.py",
    "cli/paper_command.py": "cli/test_commands.py",
    "cli/report_command.py": "cli/test_commands.py",
    "cli/serve_command.py": "serving/test_server.py",
    "datasets/classifiers/mobilenet.py": "datasets/test_classifiers.py",
    "datasets/classifiers/pixels.py": "datasets/test_classifiers.py",
    "datasets/classifiers/pretrained.py": "datasets/test_classifiers.py",
    "datasets/classifiers/resnet.py": "datasets/test_classifiers.py",
    "datasets/classifiers/squeezenet.py": "datasets/test_classifiers.py",
    "interop/encoded_rows.py": "interop/test_captum.py",
    "paper/image_experiments.py": "paper/test_image_run.py",
    "paper/image_figures.py": "paper/test_image_run.py",
    "paper/image_page.py": "paper/test_image_run.py",
    "paper/image_sets.py": "paper/test_image_run.py",
    "paper/image_settings.py": "paper/test_image_run.py",
    "paper/table_figures.py": "paper/test_table_run.py",
    "paper/table_page.py": "paper/test_table_run.py",
}


def own_tests(module: str) -> list[Path]:
    """Return the test modules ``test_<name>.py`` and ``test_<name>_<topic>.py`` in the mirrored folder."""
    path = Path(module)
    folder = TESTS / path.parent
    return [*folder.glob(f"test_{path.stem}.py"), *folder.glob(f"test_{path.stem}_*.py")]


def imports_fastshap(source: str) -> bool:
    """Return whether code imports the class or its module, also inside functions or for types only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(name.name == "fastshapley.explainer" for name in node.names):
            return True
        if isinstance(node, ast.ImportFrom):
            names = {name.name for name in node.names}
            if node.module == "fastshapley.explainer" or (
                node.module == "fastshapley" and names & {"FastSHAP", "explainer"}
            ):
                return True
    return False


def test_the_package_has_few_top_level_modules() -> None:
    top = [module for module in MODULES if "/" not in module]
    assert len(top) <= MOST_AT_THE_TOP, top


def test_no_two_modules_or_folders_have_the_same_name() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        if module not in DOORS and module != "__init__.py":
            places[path.parent.name if path.name == "__init__.py" else path.stem].append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


@pytest.mark.parametrize("module", [module for module in MODULES if not module.endswith("__init__.py")])
def test_each_module_has_a_test_module(module: str) -> None:
    listed = [module in exceptions for exceptions in (WITHOUT_TESTS, TESTED_WITH)]
    if own_tests(module):
        assert not any(listed), f"{module} has tests now: remove it from the exceptions in tests/test_structure.py"
    else:
        assert sum(listed) == 1, f"write tests/{Path(module).parent / f'test_{Path(module).stem}.py'}"


def test_exceptions_name_modules_and_tests_that_exist() -> None:
    assert {*WITHOUT_TESTS, *TESTED_WITH, *DOORS} <= set(MODULES)
    assert all((TESTS / test).is_file() for test in TESTED_WITH.values())


def test_modules_below_the_explainer_do_not_import_fastshap() -> None:
    below = {module: path for module, path in MODULES.items() if not module.startswith(ABOVE_EXPLAINER)}
    assert not [module for module, path in below.items() if imports_fastshap(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "source",
    [
        "from fastshapley.explainer import FastSHAP",
        "from fastshapley import FastSHAP",
        "from fastshapley import explainer",
        "import fastshapley.explainer",
        "if TYPE_CHECKING:\n    from fastshapley.explainer import FastSHAP",
        "def f():\n    from fastshapley import FastSHAP",
    ],
)
def test_every_form_of_the_import_is_found(source: str) -> None:
    assert imports_fastshap(source)
    assert not imports_fastshap(source.replace("FastSHAP", "other").replace("explainer", "explanation"))
