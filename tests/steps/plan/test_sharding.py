import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import DEFAULT_BATCH_IMAGES
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.catalog import ImageGroup
from imagekiln.steps.plan.sharding import Sharding, cut_shards, work_per_image

SMALLEST = {"name": "a", "prompts": "p.parquet", "output": "out", "model": {"id": "bundled:shapes"}}


def _groups(*images: int, steps: int = 10) -> tuple[ImageGroup, ...]:
    return tuple(
        ImageGroup(64, 64, steps + place, 1.0, "default", count)
        for place, count in enumerate(images)
    )


def _cut(
    groups: tuple[ImageGroup, ...], seconds: float | None = None, **settings: object
) -> Sharding:
    job = validate_job({**SMALLEST, **settings})
    return cut_shards(job, groups, seconds, job.batch.images or DEFAULT_BATCH_IMAGES)


@pytest.mark.parametrize(
    ("images", "shard", "sizes"),
    [
        (1, 64, (1,)),
        (64, 64, (64,)),
        (65, 64, (64, 1)),
        (200, 64, (64, 64, 64, 8)),
        (200, 1000, (200,)),
    ],
)
def test_shards_of_images_are_full_but_for_the_last(
    images: int, shard: int, sizes: tuple[int, ...]
) -> None:
    result = _cut(
        _groups(images), batch={"images": 8}, part={"images": 32}, shard={"images": shard}
    )
    assert result == Sharding(32, sizes)


def _seconds_per_work(seconds_per_image: float) -> float:
    return seconds_per_image / work_per_image(_groups(1)[0])


def test_a_part_of_a_slow_model_has_two_minutes_of_whole_batches_and_at_least_one() -> None:
    assert _cut(_groups(100), _seconds_per_work(4)).part_images == 24
    assert _cut(_groups(100), _seconds_per_work(400)).part_images == 8
    assert _cut(_groups(100), _seconds_per_work(0.01)).part_images == 64


@pytest.mark.parametrize(
    ("images", "settings", "largest"),
    [
        (64_000, {}, 2048),
        (64_000, {"shard": {"seconds_per_image": 0.01}}, 4032),
        (64_000, {"batch": {"tuning": "tuning.yaml", "images": 8}}, 4032),
        (16_000, {"shard": {"seconds_per_image": 0.01}}, 2048),
    ],
)
def test_a_quick_model_has_larger_shards_where_measured_but_enough_for_sixteen_pods(
    images: int, settings: dict[str, object], largest: int
) -> None:
    result = _cut(_groups(images), _seconds_per_work(0.01), **settings)
    assert result.shard_images[0] == largest
    assert sum(result.shard_images) == images


def test_shard_of_minutes_takes_no_longer_than_asked() -> None:
    groups = _groups(500, 500)
    seconds = 0.5 / work_per_image(
        groups[0]
    )  # an image of the first group takes half a second, one of the second a bit more
    result = _cut(groups, seconds, batch={"images": 4}, part={"images": 20}, shard={"minutes": 1})
    assert result.shard_images[:4] == (120, 120, 120, 120)
    assert result.shard_images[5] == 100
    left = [*result.shard_images]
    costs = [seconds * work_per_image(group) for group in groups for _ in range(group.images)]
    for images in left:
        assert sum(costs[:images]) <= 60
        costs = costs[images:]


def test_minutes_without_a_figure_for_the_model_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        _cut(_groups(1), None, shard={"minutes": 30})
    assert str(caught.value) == (
        "shard.minutes needs shard.seconds_per_image for this model; write it, or shard.images."
    )


def test_too_many_shards_are_refused() -> None:
    with pytest.raises(
        BadInput, match=r"^the job makes 100001 shards; at most 100000 fit\. Make `shard` larger\.$"
    ):
        _cut(_groups(100_001), batch={"images": 1}, part={"images": 1}, shard={"images": 1})
