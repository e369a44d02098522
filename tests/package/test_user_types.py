"""A user's script passes type checkers as they come, without pydantic's plugin."""

import subprocess
import sys

import pytest

SCRIPTS = ("script.py", "mistake.py")
HEAVY = "torch.*,torchao.*,diffusers.*,transformers.*,accelerate.*,matplotlib.*"
SCRIPT = """
import imagekiln
from imagekiln import ClusterSettings, Job, ModelSettings, RowDefaults
from imagekiln.settings import Jpeg, JobLimits, LoraSettings, ShardSettings

job = Job(
    name="postcards",
    prompts="prompts.parquet",
    output="images",
    model=ModelSettings(
        id="bundled:shapes",
        loras={"style": LoraSettings(id="org/style", weight_name="style.safetensors")},
    ),
    defaults=RowDefaults(steps=20),
    encoding=Jpeg(quality=90),
    limits=JobLimits(failed_share=0.01),
    shard=ShardSettings(minutes=30, seconds_per_image=2),
    cluster=ClusterSettings(parallelism=8),
)
hours: float | None = imagekiln.estimate(job).gpu_hours
dataset: str = imagekiln.run(job, progress=True).uri
status: str = imagekiln.cluster.submit(job, date="2026-11-21").phase
"""
MISTAKE = """
from imagekiln import Job, ModelSettings

Job(name="a", prompts="a", output="b", model=ModelSettings(id="c"), steps=3)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says of both scripts, in a folder with no configuration but --strict.

    Libraries of the extra `generate` are skipped, as if they were not installed: reading them
    takes ten seconds, and no name that a script imports has their types.
    """
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "mistake.py").write_text(MISTAKE)
    (folder / "mypy.ini").write_text(f"[mypy]\n[mypy-{HEAVY}]\nfollow_imports = skip\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", *SCRIPTS],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    return checked.stdout


@pytest.mark.slow
def test_job_in_python_passes_mypy_without_a_plugin(output: str) -> None:
    assert "checked 2 source files" in output
    assert "script.py" not in output


@pytest.mark.slow
def test_setting_that_does_not_exist_is_an_error(output: str) -> None:
    assert 'mistake.py:4: error: Unexpected keyword argument "steps"' in output
    assert "Found 1 error in 1 file" in output
