"""Several workers in one pod, with real pipelines: a process that loads torch for each shard."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def test_two_workers_make_the_shards_of_their_lots(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"prompt": ["a circle", "a square", "a star"]}), tmp_path / "prompts.parquet"
    )
    job = tmp_path / "job.yaml"
    job.write_text(
        f"name: shapes\nprompts: {json.dumps(str(tmp_path / 'prompts.parquet'))}\n"
        f"output: {json.dumps(str(tmp_path / 'runs'))}\n"
        'model: {id: "bundled:shapes", dtype: float32}\ndefaults: {steps: 1}\n'
        "shard: {images: 1}\npart: {images: 1}\nbatch: {images: 1}\n"
        "device: cpu\nthreads: 1\nrun_id: one\n",
        encoding="utf-8",
    )
    run, out = tmp_path / "runs" / "one", tmp_path / "out"
    assert _imagekiln("plan", "--workers", "2", "--outputs", out, job).returncode == 0
    assert (out / "pods").read_text(encoding="utf-8") == "2"
    for lot in (0, 1):
        done = _imagekiln("generate", "--shard", lot, "--workers", 2, run)
        assert done.returncode == 0, done.stderr
    assert [path.name for path in sorted((run / "images").iterdir())] == [
        f"0000{n}-0000.parquet" for n in range(3)
    ]
    beyond = _imagekiln("generate", "--shard", 2, "--workers", 2, run)
    assert beyond.returncode == 2
    assert "lot 2" in beyond.stderr


def _imagekiln(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "imagekiln", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
