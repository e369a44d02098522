"""Several workers with real pipelines, in a pod and on one machine. Slow: each loads torch."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def test_two_workers_make_the_shards_of_their_pods(tmp_path: Path) -> None:
    job = _write_job(tmp_path)
    run, out = tmp_path / "runs" / "one", tmp_path / "out"
    assert _imagekiln("plan", "--workers", "2", "--outputs", out, job).returncode == 0
    assert (out / "pods").read_text(encoding="utf-8") == "2"
    for pod in (0, 1):
        done = _imagekiln("generate", "--shard", pod, "--workers", 2, run)
        assert done.returncode == 0, done.stderr
    assert [path.name for path in sorted((run / "images").iterdir())] == [
        f"0000{n}-0000.parquet" for n in range(3)
    ]
    beyond = _imagekiln("generate", "--shard", 2, "--workers", 2, run)
    assert beyond.returncode == 2
    assert "pod 2" in beyond.stderr


def test_ctrl_c_stops_all_workers_and_the_next_run_resumes(tmp_path: Path) -> None:
    job = _write_job(tmp_path, images=120)
    command = [sys.executable, "-m", "imagekiln", "run", str(job), "--gpus", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not list(tmp_path.glob("runs/one/images/*.parquet")):
            assert process.poll() is None
            time.sleep(0.05)
        workers = _worker_processes(process.pid)
        process.send_signal(signal.SIGINT)
        message = process.stderr.read()
    assert process.returncode == 75
    assert "Run the same command again to resume." in message
    assert len(workers) == 2
    assert not any(Path("/proc", worker).exists() for worker in workers)
    assert _imagekiln("run", job, "--gpus", 2).returncode == 0
    assert (tmp_path / "runs" / "one" / "_SUCCESS").exists()


def _worker_processes(parent: int) -> list[str]:
    """The ids of the worker processes of a process."""
    return [
        child
        for children in Path(f"/proc/{parent}/task").glob("*/children")
        for child in children.read_text().split()
        if b"generate.workers" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def _write_job(folder: Path, images: int = 3) -> Path:
    """A job whose shards have one image each."""
    prompts = [f"a circle number {place}" for place in range(images)]
    pq.write_table(pa.table({"prompt": prompts}), folder / "prompts.parquet")
    job = folder / "job.yaml"
    job.write_text(
        f"name: shapes\nprompts: {json.dumps(str(folder / 'prompts.parquet'))}\n"
        f"output: {json.dumps(str(folder / 'runs'))}\n"
        'model: {id: "bundled:shapes", dtype: float32}\ndefaults: {steps: 1}\n'
        "shard: {images: 1}\npart: {images: 1}\nbatch: {images: 1}\n"
        "device: cpu\nrun_id: one\n",
        encoding="utf-8",
    )
    return job


def _imagekiln(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "imagekiln", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
