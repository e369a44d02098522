"""A sample of a plan's images that makes its first shard."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.storage import open_store
from tests.runs import job, write_prompts

PLAIN: dict[str, object] = {"width": 64, "height": 64, "sampler": None}
WORDS = "a red circle beside a blue square"
# 40 images of one shape, of 3 to 33 letters, two of another size, and one of another sampler.
ROWS = [
    *({"prompt": WORDS[: 3 + number % 31], "seed": number, **PLAIN} for number in range(40)),
    {"prompt": "tall", "seed": 0, **PLAIN, "height": 96},
    {"prompt": "tall too", "seed": 0, **PLAIN, "height": 96},
    {"prompt": "other", "seed": 0, **PLAIN, "sampler": "euler"},
]


def _plan(folder: Path, sample: int | None = None, **changes: object) -> PlanResult:
    prompts = write_prompts(folder / "prompts.parquet", ROWS)
    settings = {"run_id": "run"} | changes
    return make_plan(job(prompts, str(folder / "out"), **settings), sample_images=sample)


def _rows(result: PlanResult, shard: int) -> pa.Table:
    return read_shard_rows(open_store(result.uri), result.plan, shard)


def _ids(result: PlanResult) -> list[str]:
    shards = range(len(result.plan.shards))
    return [name for shard in shards for name in _rows(result, shard)["image_id"].to_pylist()]


def test_the_sample_is_the_first_shard_and_the_others_follow_as_always(tmp_path: Path) -> None:
    plain = _plan(tmp_path / "plain")
    sampled = _plan(tmp_path / "sampled", 8)
    assert [shard.images for shard in sampled.plan.shards] == [8, 8, 8, 8, 8, 3]
    assert sampled.plan.sample_images == 8
    ids = _ids(sampled)
    assert sorted(ids) == sorted(_ids(plain))
    first = set(ids[:8])
    assert ids[8:] == [name for name in _ids(plain) if name not in first]


def test_the_sample_has_every_shape_and_short_and_long_prompts(tmp_path: Path) -> None:
    rows = _rows(_plan(tmp_path, 8), 0)
    assert {"euler", "default"} == set(rows["sampler"].to_pylist())
    assert 96 in rows["height"].to_pylist()
    lengths = [len(prompt) for prompt in rows["prompt"].to_pylist()]
    assert min(lengths) <= 6
    assert max(lengths) >= 28
    # Batches share a shape: the sample is in the order of groups, as every shard is.
    shapes = list(zip(rows["height"].to_pylist(), rows["sampler"].to_pylist(), strict=True))
    changes = sum(shape != other for shape, other in pairwise(shapes))
    assert changes == len(set(shapes)) - 1


def test_a_job_with_a_canary_is_planned_with_a_sample_wherever_it_is_planned(
    tmp_path: Path,
) -> None:
    result = _plan(tmp_path, cluster={"canary": 6})
    assert load_plan(open_store(result.uri)).sample_images == 6
