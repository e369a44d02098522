"""What importing costs: a laptop that submits has no torch, and a command starts at once.

Which module may import which is held by import-linter, in `make lint`.
"""

import subprocess
import sys
from importlib.util import find_spec
from pkgutil import walk_packages

import pytest

import imagekiln

HEAVY = {"diffusers", "duckdb", "numpy", "pyarrow", "pydantic", "s3fs", "torch", "transformers"}
GENERATE_ONLY = (
    "accelerate",
    "diffusers",
    "peft",
    "torch",
    "torchao",
    "transformers",
)
MAKES_IMAGES = (
    "imagekiln.__main__",
    "imagekiln.steps.dataset.torch_dataset",
    "imagekiln.steps.generate.",
    "imagekiln.steps.rewrite.language_model",
)


def _run(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _modules_loaded_by(module: str) -> set[str]:
    return set(_run(f"import sys, {module}; print(*sys.modules)").split())


@pytest.mark.parametrize(
    "module", ["imagekiln", "imagekiln.workflows", "imagekiln.workflows.cli.main"]
)
def test_importing_the_front_door_or_the_command_line_loads_nothing_heavy(module: str) -> None:
    assert all(find_spec(name) for name in HEAVY), "a library that is not installed proves nothing"
    assert _modules_loaded_by(module) & HEAVY == set()


def test_what_makes_no_image_imports_without_what_only_generate_installs() -> None:
    """As on a laptop that only submits, and in the image of the CPU steps."""
    names = [found.name for found in walk_packages(imagekiln.__path__, "imagekiln.")]
    modules = [name for name in names if not name.startswith(MAKES_IMAGES)]
    assert len(modules) > 150
    _run(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({GENERATE_ONLY}))\n"
        f"for name in {modules}: importlib.import_module(name)"
    )
