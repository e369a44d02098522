"""Jobs for a cluster: small, in its own object store, with the bundled model, and what became of them."""

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
COLOURS = ("red", "green", "blue", "yellow")
TEXTS = tuple(
    f"a {ink} circle on a {ground} background"
    for ink in COLOURS
    for ground in COLOURS
    if ink != ground
)


def prompts(columns: dict[str, list[object]] | None = None, key: str = "") -> str:
    """Prompts in the bucket: these, or a dozen; give their URI."""
    uri = f"{BUCKET}/{key or f'prompts/{uuid4().hex[:12]}.parquet'}"
    with fsspec.open(uri, "wb") as file:
        pq.write_table(pa.table(columns or {"prompt": list(TEXTS)}), file)
    return uri


def job(**settings: object) -> Job:
    """A job of two shards of six images, drawn in seconds, and a run that nobody has made yet."""
    values: dict[str, object] = {
        "name": "test",
        "run_id": f"run-{uuid4().hex[:12]}",
        "output": f"{BUCKET}/datasets",
        "model": {"id": "bundled:shapes", "dtype": "float32"},
        "defaults": {"steps": 4, "seed": 7},
        "shard": {"images": 6},
        "part": {"images": 2},
        "batch": {"images": 2},
        "threads": 1,
        "cluster": {"namespace": NAMESPACE, "profile": "test"},
    }
    return validate_job(
        {"prompts": settings.pop("prompts", None) or prompts(), **values, **settings}
    )


def here(wanted: Job, folder: Path) -> str:
    """The same job done on this machine."""
    local = wanted.model_copy(update={"output": str(folder), "device": "cpu"})
    return run(local).uri


def made(uri: str) -> dict[str, str]:
    """A run's images and the hashes of their files, as its manifest has them."""
    rows = manifest(uri)
    return dict(zip(rows["image_id"].to_pylist(), rows["sha256"].to_pylist(), strict=True))


def incomplete(uri: str) -> None:
    """Account for a run from this machine, where images are missing."""
    with pytest.raises(Incomplete, match="are missing"):
        aggregate(uri)


def manifest(uri: str) -> pa.Table:
    """A run's manifest as one table."""
    store = open_store(uri)
    count = len(load_plan(store).shards)
    return pa.concat_tables([read_table(store, manifest_key(number)) for number in range(count)])


def written(uri: str) -> dict[str, object]:
    """When each object of a run's images was written."""
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    return {
        name: each["LastModified"]
        for name, each in files.find(f"{uri}/images", detail=True).items()
    }
