"""Several processes in one pod, which make the pod's shards together."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.workflows.pod import workers
from imagekiln.workflows.pod.workers import generate_shards
from tests.runs import planned


@pytest.mark.parametrize("pod_index", [-1, 2])
def test_pod_without_shards_is_a_mistake(tmp_path: Path, pod_index: int) -> None:
    run = planned(tmp_path, str(tmp_path / "out")).uri  # three shards
    with pytest.raises(BadInput, match=f"has 3 shards, so pod {pod_index} of 2 workers has none"):
        generate_shards(run, pod_index, 2, NoProgress(), Stop())


@pytest.mark.parametrize(("pod_index", "shards"), [(0, [0, 1]), (1, [2])])
def test_pod_makes_the_shards_that_follow_those_of_the_pods_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod_index: int, shards: list[int]
) -> None:
    made: list[int] = []

    def make(_store: object, _plan: object, numbers: range, *_: object) -> None:
        made.extend(numbers)

    monkeypatch.setattr(workers, "make_shards", make)
    run = planned(tmp_path, str(tmp_path / "out")).uri
    generate_shards(run, pod_index, 2, NoProgress(), Stop())
    assert made == shards
