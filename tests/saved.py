"""Finished runs of each release, which later ones must read: tests/saved_runs/VERSION.tar.xz.

Before a release, `python -m tests.saved` saves two of this version, of six prompts each: PLAIN has
an image of each, in the format `parquet`; BEST has rewritten prompts and carried columns, of two
candidates the one with the higher score, and passes that run separately, one of them by a model of
its own, in the format `webdataset`. In both, a round of `retry` was overtaken before it had made
anything, and the next one mended a prompt and left another as failed.

FIELDS has what runs of this state have in their objects: `python -m tests.saved --fields` writes
it.
"""

import argparse
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate import step as aggregate_step
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.generate.draw_stage import draw_shard
from imagekiln.steps.generate.lazy_denoiser import LoadedPasses
from imagekiln.steps.generate.pass_stage import pass_shard
from imagekiln.steps.generate.scores import load_scorers
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.rewrite.step import rewrite
from imagekiln.steps.runs.image import DrawnImage, ImageRow, PassedImages
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import jobs, nights
from tests.image_models import captioner_folder
from tests.language_models import language_model
from tests.nights import Painter, write_no_report

FOLDER = Path(__file__).parent / "saved_runs"
SAVED_RUNS = sorted(FOLDER.glob("*.tar.xz"))
FIELDS = FOLDER / "fields.json"
PLAIN = "saved"
BEST = "best"
OUTPUT = "out"
MODELS = "models"
PROMPTS = (
    "a circle",
    "a square that fails at first",
    "a star",
    "a cross that always breaks",
    "a ring",
    "a line",
)
CANDIDATES = {PLAIN: 1, BEST: 2}
CARRIED: Mapping[str, pa.Array] = {
    "whole": pa.array([1, 2, None, 4, 5, 6], pa.uint32()),
    "number": pa.array([1.5, None, float("nan"), -0.0, 1e300, 2.5]),
    "flag": pa.array([True, False, None, True, False, True]),
    "note": pa.array(["x", None, "\u00e9", "", "y", "z"], pa.large_string()),
    "content": pa.array([b"1", b"\xff", None, b"", b"2", b"3"]),
    "day": pa.array([date(2026, 1, 2), None, date(1, 1, 1), *[date(9999, 12, 31)] * 3]),
    "moment": pa.array([datetime(2026, 1, 2, tzinfo=UTC), *[None] * 5], pa.timestamp("us", "UTC")),
    "price": pa.array([Decimal("1.50"), Decimal("-2.25"), *[None] * 4]),
    "tags": pa.array([["a", "b"], [], None, [None], ["c"], ["a"]]),
    "place": pa.array([{"x": 1, "name": "n"}, None, *[{"x": 2, "name": None}] * 4]),
    "kind": pa.array(["p", "q", None, "q", "r", "p"]).dictionary_encode(),
    "sizes": pa.array([[("w", 1)], [], None, *[[("h", 2)]] * 3], pa.map_(pa.string(), pa.int32())),
}


def make_saved_runs() -> None:
    """Make the runs in the current folder, whose name is then in none of their objects."""
    _make_saved_run(job_of(PLAIN))
    write_models()
    job = job_of(BEST)
    rewrite(job)
    _make_saved_run(job)


def _make_saved_run(job: Job) -> None:
    run = make_plan(job)
    store = open_store(run.uri)
    with suppress(Incomplete):
        aggregate(run.uri)
    plan_next_round(store, run.plan)  # superseded, since the job is run again before it
    work(run.uri)
    aggregate(run.uri)
    retry_round = plan_next_round(store, run.plan)
    assert retry_round is not None
    if run.plan.job.separate_passes:
        _make_separately(retry_round.store, retry_round.plan, is_retry=True)
    else:
        nights.make_round(retry_round)
    aggregate(run.uri)


def job_of(name: str, **settings: object) -> Job:
    """The job of one of the runs, its input and output in the current folder."""
    best: dict[str, object] = {
        "format": "webdataset",
        "carry": [*CARRIED],
        "rewrite": {
            "model": {"id": f"{MODELS}/writer", "dtype": "float32"},
            "append": True,
        },
        "scores": {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
        "keep": f"best 1 of {CANDIDATES[BEST]} by seeds",
        "passes": {
            "detail": {
                "kind": "refine",
                "strength": 0.5,
                "steps": 2,
                "model": {"id": "bundled:shapes", "dtype": "bfloat16"},
            },
            "words": {"kind": "caption", "id": f"{MODELS}/captioner", "max_tokens": 3},
        },
        "separate_passes": True,
        "part": {"images": 4},
    }
    plain: dict[str, object] = {
        "defaults": {"steps": 1, "width": 64, "height": 64, "seed": 7},
        "limits": {"failed_share": 0.4},
        "batch": {"images": 1},
        "part": {"images": 3},
        "device": "cpu",
    }
    columns = {"prompt": PROMPTS, **(CARRIED if name == BEST else {})}
    return jobs.job(
        Path(),
        columns,
        **{"name": name, "run_id": name, **plain, **(best if name == BEST else {}), **settings},
    )


def write_models() -> None:
    """Write the models of BEST, but for those that ship. Nothing asks the captioner."""
    shutil.copytree(language_model("gpt2"), f"{MODELS}/writer")
    shutil.copytree(captioner_folder(), f"{MODELS}/captioner")
    weights = Path(MODELS, "captioner", "model.safetensors")
    content = weights.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    weights.write_bytes(content[:start] + bytes(len(content) - start))  # zeros take no room


def work(uri: str) -> None:
    """Make what is missing of a run, with pictures and captions that are no model's."""
    store = open_store(uri)
    plan = load_plan(store)
    if plan.job.separate_passes:
        _make_separately(store, plan, is_retry=False)
    else:
        nights.work(uri, 0)


def _make_separately(store: Store, plan: Plan, *, is_retry: bool) -> None:
    """Draw and score the shards of a run or round, and then run the passes over them."""
    painter = Painter(is_retry)
    painter.scorers = load_scorers(plan, painter.device)
    passes = LoadedPasses(painter.device, CaptionedNegatives())
    for number in range(len(plan.shards)):
        draw_shard(store, plan, number, lambda: painter, NoProgress(), Stop())
        pass_shard(store, plan, number, lambda: passes, NoProgress(), Stop())


class CaptionedNegatives:
    """Stands for passes: negatives of the images that are ok, each with a caption."""

    def __call__(
        self,
        images: Sequence[DrawnImage],
        rows: Sequence[ImageRow],
        check: Callable[[], None],
    ) -> PassedImages:
        """The images after their passes."""
        check()
        passed = [
            image
            if image.rgb is None
            else replace(image, rgb=255 - image.rgb, captions={"words": row.image_id[:4]})
            for image, row in zip(images, rows, strict=True)
        ]
        return PassedImages(passed, {"detail": 1.0, "words": 0.5})

    def close(self) -> None:
        """End nothing."""


def unpack(archive: Path, folder: Path, name: str) -> str:
    """The URI of a saved run, unpacked into a folder with the others and with their models."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return str(folder / OUTPUT / name)


@contextmanager
def making_saved_runs() -> Iterator[Path]:
    """The output of runs that are made in a temporary folder, beside their models."""
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.chdir(scratch)
        patch.setattr(aggregate_step, "write_report", write_no_report)
        make_saved_runs()
        yield Path(OUTPUT)


def list_fields(output: Path) -> dict[str, list[str]]:
    """The fields of each kind of JSON object under an output, and the columns of each table.

    How many there are of a kind does not matter. Settings of the job are left out: an older
    Imagekiln refuses those that it does not know.
    """
    fields: dict[str, list[str]] = {}
    for path in sorted(output.rglob("*")):
        name = re.sub("[0-9a-f]{16}|[0-9]{4,}", "N", path.relative_to(output).as_posix())
        if path.suffix == ".json":
            paths = set(_iter_paths(json.loads(path.read_bytes())))
            fields[name] = sorted(field for field in paths if not field.startswith("job."))
        elif path.suffix == ".parquet":
            fields[name] = [f"{field.name}: {field.type}" for field in pq.read_schema(path)]
    return fields


def _iter_paths(value: object, prefix: str = "") -> Iterator[str]:
    """The path of each field in a JSON document; all entries of a list have the same ones."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{prefix}{name}"
            yield from _iter_paths(inner, f"{prefix}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_paths(inner, prefix)


def main() -> None:
    """Save runs of this version, or what is in their objects."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fields", action="store_true")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with making_saved_runs() as output:
        if arguments.fields:
            FIELDS.write_text(json.dumps(list_fields(output), indent=1) + "\n", encoding="utf-8")
            return
        with tarfile.open(FOLDER / f"{version('imagekiln')}.tar.xz", "w:xz") as tar:
            tar.add(OUTPUT)
            tar.add(MODELS)


if __name__ == "__main__":
    main()
