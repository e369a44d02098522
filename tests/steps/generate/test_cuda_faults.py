"""A shard on a GPU that fails at any call: right pixels or none, and never a row that is blamed.

The GPU is a stand-in on the CPU (tests/cuda.py), with the streams, waits and errors of CUDA.
"""

import weakref
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq
import pytest
import torch

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.patches import mark_shared
from imagekiln.steps.generate.step import generate_shard
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import models
from tests.cuda import (
    CUDA,
    Cuda,
    DeviceLost,
    DeviceLostUnnoticed,
    Fault,
    LibraryLosesDevice,
    MemoryRunsOut,
    install,
)
from tests.runs import PROMPTS, planned

Pixels: TypeAlias = dict[str, tuple[str, str]]  # by image id: status, and SHA-256 of the pixels
KEYS = [part_key(0, number) for number in range(3)]
# Where in a shard the fault strikes, as a share of its calls: from the first to the last.
MOMENTS = [
    0.0,
    0.3,
    1.0,
    *(pytest.param(moment, marks=pytest.mark.slow) for moment in (0.1, 0.5, 0.75, 0.95)),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pixels, Cuda]]:
    """What a GPU without faults makes of the shard, and how many calls that takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = planned(folder, str(folder / "out"), PROMPTS[:10], shard={"images": 100})
    with pytest.MonkeyPatch.context() as monkeypatch:
        cuda = install(monkeypatch)
        _generate(run, cuda)
        yield _pixels(run), cuda


@pytest.fixture
def run(tmp_path: Path) -> PlanResult:
    """A planned run of one shard with parts of 4, 4 and 2 images, each with a prompt of its own."""
    return planned(tmp_path, str(tmp_path / "out"), PROMPTS[:10], shard={"images": 100})


def _denoiser(cuda: Cuda) -> Denoiser:
    """A model whose texts, and thereby all that is computed from them, are on the device."""
    pipe = models.pipe("sd")
    encode = pipe.encode_prompt

    @wraps(encode)
    def encode_on_device(*args: object, **kwargs: object) -> tuple[object, ...]:
        encoded = encode(*args, **kwargs)
        return tuple(
            cuda.on_device(each) if isinstance(each, torch.Tensor) else each for each in encoded
        )

    pipe.encode_prompt = encode_on_device
    with pytest.MonkeyPatch.context() as monkeypatch:  # only the denoiser is to take it for a GPU
        monkeypatch.setattr(type(pipe), "device", property(lambda _: CUDA))
        return Denoiser(pipe, SpeedSettings(compile="off"))


def _generate(run: PlanResult, cuda: Cuda) -> ShardStats | None:
    store = open_store(run.uri)
    return generate_shard(store, run.plan, 0, lambda: _denoiser(cuda), NoProgress(), Stop())


def _pixels(run: PlanResult) -> Pixels:
    """The images of all parts that are committed."""
    store = open_store(run.uri)
    columns = ["image_id", "status", "pixels_sha256"]
    rows = [
        row
        for key in KEYS
        if store.exists(key)
        for row in pq.read_table(store.uri_of(key), columns=columns).to_pylist()
    ]
    return {row["image_id"]: (row["status"], row["pixels_sha256"]) for row in rows}


def test_pixels_are_those_of_a_device_that_does_one_thing_at_a_time(
    run: PlanResult, undisturbed: tuple[Pixels, Cuda]
) -> None:
    pixels, cuda = undisturbed
    store = open_store(run.uri)
    generate_shard(store, run.plan, 0, lambda: Denoiser(models.pipe("sd")), NoProgress(), Stop())
    assert pixels == _pixels(run)
    assert len(pixels) == 10
    assert cuda.races == []


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_wherever_memory_runs_out_all_images_are_made_with_the_same_pixels(
    moment: float,
    run: PlanResult,
    undisturbed: tuple[Pixels, Cuda],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels, first = undisturbed
    fault = MemoryRunsOut(1 + round(moment * (first.last_wait - 20)))
    cuda = install(monkeypatch, fault)
    stats = _generate(run, cuda)
    assert fault.has_struck
    assert stats is not None
    assert _pixels(run) == pixels
    assert cuda.races == []


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", [DeviceLost, DeviceLostUnnoticed, LibraryLosesDevice])
def test_wherever_the_device_is_lost_the_shard_is_to_be_tried_again_and_what_is_made_is_right(
    kind: type[Fault],
    moment: float,
    run: PlanResult,
    undisturbed: tuple[Pixels, Cuda],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels, first = undisturbed
    with monkeypatch.context() as patch:
        cuda = install(patch, kind(1 + round(moment * (first.last_wait - 1))))
        with pytest.raises(TryAgain, match="the device failed"):
            _generate(run, cuda)

    made = _pixels(run)
    assert made.items() <= pixels.items()
    assert len(made) in (0, 4, 8)  # whole parts only
    _generate(run, install(monkeypatch))
    assert _pixels(run) == pixels


@pytest.mark.parametrize("fault", [None, DeviceLost(1)])
def test_what_streams_share_outlives_the_model_only_where_the_device_is_lost_after_its_last_image(
    fault: Fault | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser = _denoiser(install(monkeypatch))
    text = mark_shared(torch.empty(1))
    shared = weakref.ref(text)
    install(monkeypatch, fault)
    denoiser.close()
    del text
    assert (shared() is None) == (fault is None)
