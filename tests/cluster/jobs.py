"""Small jobs with the bundled model in the cluster's object store, and what became of them."""

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.local import run
from imagekiln.steps.runs.keys import commit_key
from imagekiln.steps.runs.parts import part_to_parquet
from imagekiln.steps.runs.run import open_run, read_shard_manifest
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.cluster.kube import NAMESPACE
from tests.runs import not_ok

BUCKET = "s3://imagekiln-tests"
COLORS = ("red", "green", "blue", "yellow")
TEXTS = tuple(
    f"a {ink} circle on a {ground} background"
    for ink in COLORS
    for ground in COLORS
    if ink != ground
)


def prompts(columns: dict[str, list[object]] | None = None, key: str = "") -> str:
    """Write prompts to the bucket, by default a dozen; their URI."""
    uri = f"{BUCKET}/{key or f'prompts/{uuid4().hex[:12]}.parquet'}"
    with fsspec.open(uri, "wb") as file:
        pq.write_table(pa.table(columns or {"prompt": list(TEXTS)}), file)
    return uri


def job(**settings: object) -> Job:
    """A job of two shards of six images, drawn in seconds, as a new run."""
    values: dict[str, object] = {
        "name": "test",
        "run_id": f"run-{uuid4().hex[:12]}",
        "output": f"{BUCKET}/datasets",
        "model": {"id": "bundled:shapes", "dtype": "float32"},
        "defaults": {"steps": 4, "seed": 7},
        "shard": {"images": 6},
        "part": {"images": 2},
        "batch": {"images": 2},
        "cluster": {"namespace": NAMESPACE, "profile": "test"},
    }
    return validate_job(
        {"prompts": settings.pop("prompts", None) or prompts(), **values, **settings}
    )


def run_here(original: Job, folder: Path) -> str:
    """Run the same job on this machine; the run's URI."""
    local = original.model_copy(update={"output": str(folder), "device": "cpu"})
    return run(local).uri


def image_hashes(uri: str) -> dict[str, str]:
    """The hash of each image's file by image id, from the manifest."""
    rows = manifest(uri)
    return dict(zip(rows["image_id"].to_pylist(), rows["sha256"].to_pylist(), strict=True))


def aggregate_anew(uri: str, lost: Sequence[str], failed: Sequence[str] = ()) -> None:
    """Aggregate a run as if for the first time, these parts being lost, or all images failed."""
    store = open_store(uri)
    run = open_run(uri)
    for number in range(run.head.number + 1):
        store.remove(commit_key(number))
    for key in lost:
        store.remove(key)
    for number in range(len(run.plan.shards)):
        for part in read_shard(store, run.plan, number):
            if part.key in failed:
                images = [not_ok(place) for place in range(part.rows.num_rows)]
                store.replace(part.key, part_to_parquet(part.rows, images))
    with pytest.raises(Incomplete):
        aggregate(uri)


def manifest(uri: str) -> pa.Table:
    """A run's manifest as one table."""
    run = open_run(uri)
    return pa.concat_tables(
        [read_shard_manifest(run, number) for number in range(len(run.plan.shards))]
    )


def write_times(uri: str) -> dict[str, object]:
    """When each object of a run's images was written."""
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    return {
        name: details["LastModified"]
        for name, details in files.find(f"{uri}/images", detail=True).items()
        if details["type"] == "file"  # while the first is written, the folder may come as itself
    }
