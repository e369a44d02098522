"""What importing the package costs: a laptop that only submits has no torch, and a command starts at once."""

import ast
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

HEAVY = {"diffusers", "duckdb", "pyarrow", "s3fs", "torch", "transformers"}
GENERATE_ONLY = {"accelerate", "diffusers", "torch", "transformers"}


def _loaded_by(module: str) -> set[str]:
    """Import a module in a fresh interpreter and name the top-level modules that are then loaded."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def _imports(package: str) -> set[str]:
    """Name, in full, all that a package's modules import, at the top or inside functions."""
    names: set[str] = set()
    for path in Path(str(files(package))).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("module", ["imagekiln.workflows", "imagekiln.workflows.cli.main"])
def test_importing_the_command_line_loads_nothing_heavy(module: str) -> None:
    assert all(find_spec(name) for name in HEAVY), "a library that is not installed proves nothing"
    assert _loaded_by(module) & HEAVY == set()


def test_steps_import_nothing_of_workflows() -> None:
    assert {
        name for name in _imports("imagekiln.steps") if name.startswith("imagekiln.workflows")
    } == set()


def test_workflows_import_nothing_that_only_generate_installs() -> None:
    assert {
        name.partition(".")[0] for name in _imports("imagekiln.workflows")
    } & GENERATE_ONLY == set()


def test_what_makes_no_image_needs_nothing_that_only_generate_installs() -> None:
    """As on the image of the CPU steps, and on a laptop that only submits."""
    makers = {
        "branches", "called", "compile_clock", "compiled_code", "compiling", "conditioning", "conditions",
        "control_noise", "decoding", "denoise", "device", "drawing", "embeddings", "fetch",
        "gauge", "generate", "lookahead", "lora_layers", "meter", "networks", "opening",
        "pipeline", "quantize", "references", "rescue", "sight", "stages", "timing", "trial", "tune",
    }  # fmt: skip
    steps = (
        {path.stem for path in Path(str(files("imagekiln.steps"))).glob("*.py")}
        - makers
        - {"__init__"}
    )
    shown = {
        f"imagekiln.workflows.{path.stem}"
        for path in Path(str(files("imagekiln.workflows"))).glob("*.py")
    }
    modules = sorted({f"imagekiln.steps.{name}" for name in steps} | shown)
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(GENERATE_ONLY)}))"
    code = f"{blocked}; import importlib; [importlib.import_module(name) for name in {modules}]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
