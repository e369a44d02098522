"""A user's script passes type checkers as they come, without pydantic's plugin."""

import subprocess
import sys
from pathlib import Path

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


def _check(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Check a script in a folder of its own, with no configuration but --strict."""
    (folder / "script.py").write_text(script)
    (folder / "mypy.ini").write_text("[mypy]\n")
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", "script.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_job_in_python_passes_mypy_without_a_plugin(tmp_path: Path) -> None:
    checked = _check(tmp_path, SCRIPT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_setting_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    checked = _check(tmp_path, MISTAKE)
    assert checked.returncode == 1
    assert 'Unexpected keyword argument "steps"' in checked.stdout
