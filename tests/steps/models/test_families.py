"""Every family of pipelines draws diffusers' own pixels; other pipelines are refused by name."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import diffusers
import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers.pipelines import auto_pipeline

from imagekiln.steps.generate.diffusion.denoiser import GUIDER_NAMES, Denoiser
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.models.families import (
    FAMILIES,
    family_of,
    known_call_of,
    unsupported_reason,
)
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import families, models, runs
from tests.models import SIDE
from tests.runs import image_row

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

RGB = npt.NDArray[np.uint8]
KINDS = sorted(families.MAKE)
SILENT_ON_NEGATIVES = {"flux", "flux2", "lcm", "sana-sprint"}
LONG = (
    "two green triangles above the large yellow star and a small red circle on the blue "
    "square in it " * 2
)
TEXTS = [
    ("a red circle", ""),
    (LONG, "text in it"),
    ("a blue square", "small text"),
    ('a "star" in text', ""),
]


def _name(kind: str) -> str:
    return type(families.pipe(kind)).__name__


def _rows(kind: str, count: int = 4, **settings: object) -> list[ImageRow]:
    side = families.SIDES.get(kind, SIDE)
    plain: dict[str, object] = {"width": side, "height": side}
    return [
        image_row(prompt, place, **{"negative_prompt": negative, **plain, **settings})
        for place, (prompt, negative) in enumerate(TEXTS[:count])
    ]


def _ours(pipe: models.Untyped, rows: Sequence[ImageRow], size: int) -> list[RGB]:
    drawn = []
    for picture in Denoiser(pipe).draw(rows, size, lambda: None):
        assert picture.rgb is not None, picture.error
        drawn.append(picture.rgb)
    return drawn


def _diffusers(pipe: models.Untyped, row: ImageRow, size: int) -> RGB:
    """The image by diffusers' own call, in a batch of copies: the text is encoded by itself."""
    pixels, family = row.parameters, family_of(type(pipe).__name__)
    call = known_call_of(type(pipe).__name__)
    assert call.guidance_argument is not None
    for name in GUIDER_NAMES:
        if hasattr(pipe, name):
            getattr(pipe, name).guidance_scale = pixels.guidance
    options: dict[str, object] = {
        "use_resolution_binning": False,
        call.guidance_argument: pixels.guidance,
    }
    if pixels.negative_prompt or family.pad_to_tokens:
        options["negative_prompt"] = pixels.negative_prompt
    size = 1 if family.one_at_a_time else size
    drawn = pipe(
        prompt=pixels.prompt,
        num_images_per_prompt=size,
        generator=[torch.Generator("cpu").manual_seed(pixels.seed + copy) for copy in range(size)],
        width=pixels.width,
        height=pixels.height,
        num_inference_steps=pixels.steps,
        **{
            name: value
            for name, value in options.items()
            if name in inspect.signature(pipe.__call__).parameters
        },
    )
    return np.asarray(drawn.images[0])


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_those_of_diffusers_own_call(kind: str) -> None:
    pipe = families.pipe(kind)
    rows = _rows(kind, 2)
    if kind == "klein":  # diffusers' own call takes no negative prompt
        rows = _rows(kind, 2, negative_prompt="")
    differ = [
        np.abs(ours.astype(int) - _diffusers(pipe, row, 2)).max()
        for row, ours in zip(rows, _ours(pipe, rows, 2), strict=True)
    ]
    # Texts padded under a mask take another way through attention: the last digit may differ.
    assert max(differ) <= (1 if family_of(_name(kind)).pad_to_tokens else 0)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_depends_on_neither_its_place_nor_its_neighbours_texts(kind: str) -> None:
    pipe = families.pipe(kind)
    first, *others = _rows(kind, 4, width=2 * families.SIDES.get(kind, SIDE))
    alone = _ours(pipe, [first], 4)[0]
    assert alone.std() > 1
    assert np.array_equal(_ours(pipe, [first, *others], 4)[0], alone)
    assert np.array_equal(_ours(pipe, [*others, first], 4)[-1], alone)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_job_runs(kind: str, tmp_path: Path) -> None:
    side = families.SIDES.get(kind, SIDE)
    silent = kind in SILENT_ON_NEGATIVES
    rows = [
        {"prompt": prompt, "negative_prompt": "" if silent else negative}
        for prompt, negative in TEXTS
    ]
    job = runs.job(
        runs.write_prompts(tmp_path / "prompts.parquet", rows),
        str(tmp_path / "out"),
        model={"id": str(families.folder(kind)), "dtype": "float32"},
        defaults={"steps": 2, "guidance": 3.0, "seed": 7, "width": side, "height": side},
    )
    done = run(job, NoProgress(), Stop())
    assert done.summary.ok == 4
    assert verify(done.uri).ok == 4


def test_every_family_of_the_table_is_tested() -> None:
    assert {*map(_name, KINDS), "FluxFillPipeline"} == set(FAMILIES)


@pytest.mark.parametrize("name", [name for name, each in FAMILIES.items() if each.image_to_image])
def test_the_variants_of_a_pipeline_are_those_that_diffusers_maps_it_to(name: str) -> None:
    pipeline = getattr(diffusers, name).__name__
    variants = family_of(name)
    for expected, mapping in (
        (variants.image_to_image, auto_pipeline.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING),
        (variants.inpaint, auto_pipeline.AUTO_INPAINT_PIPELINES_MAPPING),
    ):
        theirs = auto_pipeline._get_task_class(mapping, pipeline, throw_error_if_not_exist=False)
        assert (theirs and theirs.__name__) == expected


def _classes_of_task(table: str) -> set[str]:
    return {
        pipeline_class.__name__
        for pipeline_class in getattr(auto_pipeline, f"AUTO_{table}_PIPELINES_MAPPING").values()
    }


FROM_TEXT = _classes_of_task("TEXT2IMAGE")


def test_a_text_to_image_class_is_refused_only_for_input_images_video_or_stages() -> None:
    names = {name for name in FROM_TEXT if unsupported_reason(name)}
    video = {"HeliosPipeline", "HeliosPyramidPipeline"}
    stages = {"IFPipeline", "KandinskyCombinedPipeline", "KandinskyV22CombinedPipeline"}
    assert {name for name in names if "Control" not in name} == video | stages


@pytest.mark.parametrize("table", ["IMAGE2IMAGE", "TEXT2VIDEO", "TEXT2AUDIO"])
def test_what_diffusers_counts_among_other_tasks_is_refused(table: str) -> None:
    editors = {name for name in _classes_of_task(table) if known_call_of(name).needs_images}
    assert not {
        name
        for name in _classes_of_task(table) - FROM_TEXT - editors
        if not unsupported_reason(name)
    }
