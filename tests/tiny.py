"""The tiny pipeline that most jobs of tests name, even if this process is to do without torch."""

import atexit
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SIDE = 16  # pixels: the size that the tiny models draw when nothing is said
ROOT = Path(__file__).parents[1]
COPY = """
import shutil, sys
from tests.models import folder
shutil.copytree(folder("sd"), sys.argv[1], dirs_exist_ok=True)
"""


def scratch(name: str) -> Path:
    """A folder that lasts as long as the tests."""
    target = Path(tempfile.mkdtemp(prefix=f"imagekiln-{name}-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    return target


@cache
def tiny_model() -> Path:
    """The folder of the pipeline, made by a process of its own unless torch is loaded anyway."""
    if "torch" in sys.modules:
        from tests.models import folder

        return folder("sd")
    target = scratch("sd")
    command = [sys.executable, "-c", COPY, str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return target
