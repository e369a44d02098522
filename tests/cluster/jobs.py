"""Small jobs with the bundled model in the cluster's object store, and what became of them."""

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
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
from tests.cluster.kube import NAMESPACE

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


def aggregate_incomplete(uri: str) -> None:
    """Aggregate a run in which images are missing."""
    with pytest.raises(Incomplete, match="are missing"):
        aggregate(uri)


def manifest(uri: str) -> pa.Table:
    """A run's manifest as one table."""
    store = open_store(uri)
    count = len(load_plan(store).shards)
    return pa.concat_tables([read_table(store, manifest_key(number)) for number in range(count)])


def write_times(uri: str) -> dict[str, object]:
    """When each object of a run's images was written."""
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    return {
        name: details["LastModified"]
        for name, details in files.find(f"{uri}/images", detail=True).items()
        if details["type"] == "file"  # while the first is written, the folder may come as itself
    }
