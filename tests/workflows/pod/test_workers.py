"""Several processes in one pod, which make the pod's shards together."""

from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.workflows.pod import workers
from imagekiln.workflows.pod.workers import generate_shards
from tests.runs import begin_retry, fill, not_ok, planned


@pytest.mark.parametrize("pod_index", [-1, 2])
def test_pod_without_shards_is_a_mistake(tmp_path: Path, pod_index: int) -> None:
    run = planned(tmp_path, str(tmp_path / "out")).uri  # three shards
    with pytest.raises(BadInput, match=f"has 3 shards, so pod {pod_index} of 2 workers has none"):
        generate_shards(run, pod_index, 2, NoProgress(), Stop())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shards that pods are to make, each with the retry that it is of."""
    shards: list[tuple[int, int]] = []

    def make(_run: object, plan: Plan, numbers: range, *_: object) -> None:
        shards.extend((plan.retry, number) for number in numbers)

    monkeypatch.setattr(workers, "make_shards", make)
    return shards


@pytest.mark.parametrize(("pod_index", "shards"), [(0, [0, 1]), (1, [2])])
def test_pod_makes_the_shards_that_follow_those_of_the_pods_before_it(
    tmp_path: Path, made: list[tuple[int, int]], pod_index: int, shards: list[int]
) -> None:
    run = planned(tmp_path, str(tmp_path / "out")).uri
    generate_shards(run, pod_index, 2, NoProgress(), Stop())
    assert made == [(0, number) for number in shards]


def test_pod_makes_the_shards_of_the_retry_that_its_address_names(
    tmp_path: Path, made: list[tuple[int, int]]
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    fill(run, {3: not_ok(3)})
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    retry = begin_retry(run).retry
    generate_shards(f"{run.uri}/retry-{retry}", 0, 2, NoProgress(), Stop())
    assert made == [(retry, 0)]
