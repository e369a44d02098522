"""Steps without the negative prompts, and steps that are extrapolated: which, and to the byte."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import diffusers
import pytest
import torch
from diffusers.callbacks import SDXLCFGCutoffCallback
from diffusers.models.cache_utils import CacheMixin

from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.step_shortcuts import step_shortcuts
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.job.execution import SpeedSettings
from imagekiln.steps.models.families import family_of, known_call_of
from imagekiln.steps.runs.image import ImageRow, image_rows
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runtime.signals import Stopped
from imagekiln.steps.storage import open_store
from tests import adapters, families, models
from tests.adapters import Controlled
from tests.drawing import bytes_of
from tests.pictures import half, noise
from tests.runs import image_row, planned

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]

LIMITED = [
    *("aura-flow", "chroma", "cogview4", "klein", "lumina2", "pixart-alpha", "pixart-sigma"),
    *("qwen-image", "sana", "sd", "sd3", "sdxl"),
]
CACHED = ["chroma", "cogview4", "flux", "flux2", "hunyuan-image", "klein", "qwen-image"]
MIDDLE: dict[str, object] = {"guidance_interval": [0.25, 0.75]}
EVERY_THIRD: dict[str, object] = {"step_cache": {"interval": 3}}


def _rows(kind: str, count: int = 1, **settings: object) -> list[ImageRow]:
    side = families.SIDES.get(kind, models.SIDE)
    plain = {"width": side, "height": side, "steps": 4, "negative_prompt": "a star"}
    return [
        image_row(f"a red circle {place}", place, **{**plain, **settings}) for place in range(count)
    ]


def _denoiser(kind: str, **speed: object) -> Denoiser:
    return Denoiser(families.pipe(kind), SpeedSettings.model_validate(speed))


def _drawn(kind: str, rows: Sequence[ImageRow], **speed: object) -> list[bytes]:
    return bytes_of(_denoiser(kind, **speed), rows, len(rows))


def _counted_rows(network: models.Untyped) -> list[int]:
    """How many rows a network runs at each call, to be read once it has run."""
    rows: list[int] = []
    forward = network.forward

    def count(*args: models.Untyped, **kwargs: models.Untyped) -> models.Untyped:
        rows.append(len(args[0] if args else kwargs["hidden_states"]))
        return forward(*args, **kwargs)

    network.forward = count
    return rows


@pytest.mark.parametrize("kind", sorted(families.MAKE))
def test_each_family_takes_the_shortcuts_that_its_pipeline_allows(kind: str) -> None:
    pipe = families.pipe(kind)
    family = family_of(type(pipe).__name__)
    assert family.limits_guidance == (kind in LIMITED)
    assert family.caches_steps == (kind in CACHED)
    assert family.caches_steps == isinstance(denoiser_network(pipe), CacheMixin)
    if family.limits_guidance:
        assert known_call_of(type(pipe).__name__).guided_above is not None


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", LIMITED)
def test_outside_the_interval_the_denoiser_does_not_see_the_negative_prompts(kind: str) -> None:
    pipe = families.pipe(kind)
    counted = _counted_rows(denoiser_network(pipe))
    bytes_of(Denoiser(pipe, SpeedSettings.model_validate(MIDDLE)), _rows(kind), 1)
    halves, calls = [1, 2, 2, 1], [1, 1, 1, 1, 1, 1]
    assert counted in (halves, calls)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", LIMITED)
def test_steps_outside_the_interval_are_those_of_an_image_without_guidance(kind: str) -> None:
    unguided = known_call_of(type(families.pipe(kind)).__name__).guided_above
    plain = _drawn(kind, _rows(kind))
    without = _drawn(kind, _rows(kind, guidance=unguided))
    assert _drawn(kind, _rows(kind), guidance_interval=[0, 0.95]) == plain  # all four steps
    assert _drawn(kind, _rows(kind), guidance_interval=[0.9, 0.95]) == without  # none of four
    assert len({*plain, *without, *_drawn(kind, _rows(kind), **MIDDLE)}) == 3


def test_guidance_that_ends_early_draws_what_diffusers_own_callback_draws() -> None:
    (row,) = _rows("sdxl")
    pipe = families.pipe("sdxl")
    cutoff = SDXLCFGCutoffCallback(cutoff_step_ratio=None, cutoff_step_index=1)
    generator = torch.Generator("cpu").manual_seed(row.parameters.seed)
    output = pipe(
        row.parameters.prompt,
        negative_prompt=row.parameters.negative_prompt,
        width=row.parameters.width,
        height=row.parameters.height,
        num_inference_steps=row.parameters.steps,
        guidance_scale=row.parameters.guidance,
        generator=[generator],
        callback_on_step_end=cutoff,
        callback_on_step_end_tensor_inputs=cutoff.tensor_inputs,
    )
    assert _drawn("sdxl", [row], guidance_interval=[0, 0.5]) == [output.images[0].tobytes()]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("kind", CACHED)
def test_only_steps_of_the_interval_run_the_denoiser(kind: str) -> None:
    pipe = families.pipe(kind)
    counted = _counted_rows(denoiser_network(pipe))
    rows = _rows(kind, steps=12)
    drawn = bytes_of(Denoiser(pipe, SpeedSettings.model_validate(EVERY_THIRD)), rows, 1)
    computed_steps = {0, 1, 2, 4, 7, 10}
    assert len(counted) in (len(computed_steps), 2 * len(computed_steps))
    assert drawn != _drawn(kind, rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_extrapolated_steps_are_those_of_diffusers_own_cache(dtype: str) -> None:
    theirs, ours = (families.pipe("flux", getattr(torch, dtype)) for _ in range(2))
    cache = diffusers.TaylorSeerCacheConfig(
        cache_interval=3, use_lite_mode=True, taylor_factors_dtype=torch.float32
    )
    theirs.transformer.enable_cache(cache)

    def draw(pipe: models.Untyped) -> torch.Tensor:
        output = pipe(
            "a red circle",
            width=models.SIDE,
            height=models.SIDE,
            num_inference_steps=12,
            generator=torch.Generator().manual_seed(7),
            output_type="latent",
        )
        latents: torch.Tensor = output.images
        return latents

    expected = draw(theirs)
    with step_shortcuts(ours, SpeedSettings.model_validate(EVERY_THIRD), 1):
        drawn = draw(ours)
    if dtype == "float32":
        assert torch.equal(drawn, expected)
    else:  # theirs are rounded to bfloat16 on the way
        assert (drawn - expected).abs().max() < 0.1


PAIRS = [
    *((kind, MIDDLE) for kind in ("sd", "sdxl", "sd3", "pixart-sigma", "klein")),
    *((kind, EVERY_THIRD) for kind in ("flux", "flux2", "chroma")),
    *((kind, MIDDLE | EVERY_THIRD) for kind in ("klein", "qwen-image")),
]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("kind", "speed"), PAIRS, ids=json.dumps)
def test_an_image_is_the_same_alone_first_and_last(
    kind: str, speed: dict[str, object], size: int
) -> None:
    first, *others = _rows(kind, size, steps=8)
    denoiser = _denoiser(kind, **speed)
    (alone,) = bytes_of(denoiser, [first], size)
    assert bytes_of(denoiser, [first, *others], size)[0] == alone
    assert bytes_of(denoiser, [*others, first], size)[-1] == alone
    assert len({*bytes_of(denoiser, [first, *others], size)}) == size


def test_a_batch_that_was_given_up_leaves_nothing_to_the_next() -> None:
    denoiser = _denoiser("klein", **EVERY_THIRD)
    rows = _rows("klein", 2, steps=8)
    steps = 0

    def stop() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise Stopped

    with pytest.raises(Stopped):
        denoiser.draw(_rows("klein", 2, steps=8, seed=9), 2, stop)
    assert bytes_of(denoiser, rows, 2) == _drawn("klein", rows, **EVERY_THIRD)


CONTROL_AND_REFERENCE = ("control_image", "reference_image")
WITH_PICTURES: list[tuple[Controlled, tuple[str, ...]]] = [
    ("sd", ("source_image",)),
    ("sd", ("source_image", "mask_image", "control_image")),
    ("sd", CONTROL_AND_REFERENCE),
    ("sdxl", ("source_image", *CONTROL_AND_REFERENCE)),
    ("sd3", ("source_image",)),
]


def _with_pictures(
    folder: Path, kind: Controlled, columns: Sequence[str], guidance: float, **speed: object
) -> list[bytes]:
    """Two images that are drawn from pictures in these columns."""
    model: dict[str, object] = {
        "id": str(adapters.model(kind)),
        "dtype": "float32",
        "controlnet": {"id": str(adapters.controlnet(kind))},
    }
    if "reference_image" in columns:
        adapter = {"id": str(adapters.ip_adapter(kind)), "weight_name": "adapter.safetensors"}
        model["ip_adapter"] = adapter
    rows = [
        {
            "prompt": f"a red circle {place}",
            "seed": place,
            "width": models.SIDE,
            "height": models.SIDE,
            "guidance": guidance,
            "steps": 8,
            **({"strength": 0.5} if "source_image" in columns else {}),
            **{name: half() if name == "mask_image" else noise(place) for name in columns},
        }
        for place in range(2)
    ]
    run_id = "-".join(["r", *speed]).replace("_", "-")
    plan = planned(folder, str(folder / "out"), rows, model=model, speed=speed, run_id=run_id)
    store = open_store(plan.uri)
    drawn = image_rows(read_shard_rows(store, plan.plan, 0))
    return bytes_of(LazyDenoiser(store, plan.plan)(), drawn, 2)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("kind", "columns"), WITH_PICTURES, ids=str)
def test_guidance_is_limited_beside_pictures_too(
    tmp_path: Path, kind: Controlled, columns: tuple[str, ...]
) -> None:
    cases: list[tuple[float, dict[str, object]]] = [
        (4.0, {}),
        (1.0, {}),
        (4.0, {"guidance_interval": [0.01, 0.02]}),
        (4.0, MIDDLE),
    ]
    guided, without, no_step, some_steps = (
        _with_pictures(tmp_path / str(place), kind, columns, guidance, **speed)
        for place, (guidance, speed) in enumerate(cases)
    )
    assert no_step == without
    assert len({*guided, *without, *some_steps}) == 6


@pytest.mark.parametrize("kind", ["sd", "sd3"])
def test_a_controlnet_does_not_run_for_the_negative_prompts_either(
    tmp_path: Path, kind: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = diffusers.ControlNetModel if kind == "sd" else diffusers.SD3ControlNetModel
    rows = []
    forward = network.forward

    def count(self: models.Untyped, *args: models.Untyped, **kwargs: models.Untyped) -> object:
        rows.append(len(args[0] if args else kwargs["hidden_states"]))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(network, "forward", count)
    _with_pictures(tmp_path, kind, ("control_image",), 4.0, **MIDDLE)
    assert rows == [2, 2, 4, 4, 4, 4, 2, 2]


@pytest.mark.parametrize("columns", [("source_image",), ("control_image",)], ids=str)
def test_steps_are_extrapolated_beside_pictures_too(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    folders = (tmp_path / "plain", tmp_path / "cached", tmp_path / "again")
    speeds: list[dict[str, object]] = [{}, EVERY_THIRD, EVERY_THIRD]
    plain, cached, again = (
        _with_pictures(folder, "flux", columns, 4.0, **speed)
        for folder, speed in zip(folders, speeds, strict=True)
    )
    assert cached == again
    assert cached != plain


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of compiling but the making of kernels."""
    monkeypatch.setattr(compile_module, "COMPILE_OPTIONS", {"backend": "eager"})
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    torch.compiler.reset()


@pytest.mark.usefixtures("traced")
def test_steps_with_and_without_guidance_are_compiled_at_the_first_batch() -> None:
    denoiser = _denoiser("sd3", compile="on", **MIDDLE)
    rows = _rows("sd3", 2)
    expected = _drawn("sd3", rows, **MIDDLE)
    assert bytes_of(denoiser, rows, 2) == expected
    with torch.compiler.set_stance("fail_on_recompile"):
        bytes_of(denoiser, _rows("sd3", 2, negative_prompt="blue"), 2)


@pytest.mark.usefixtures("traced")
def test_a_first_batch_is_one_that_compiles_whatever_its_steps() -> None:
    denoiser = _denoiser("sd3", compile="on", guidance_interval=[0, 0.4])
    compiling = []
    bytes_of(denoiser, _rows("sd3", 2, steps=1), 2)  # none with guidance
    denoiser.draw(
        _rows("sd3", 2, steps=5),
        2,
        lambda: compiling.append(denoiser.compiled_pipeline.compiling_now),
    )
    assert compiling == [True] * 5


@pytest.mark.usefixtures("traced")
def test_extrapolated_steps_compile_nothing_anew() -> None:
    denoiser = _denoiser("flux", compile="on", **EVERY_THIRD)
    rows = _rows("flux", 2, steps=8)
    assert bytes_of(denoiser, rows, 2) == _drawn("flux", rows, **EVERY_THIRD)
    with torch.compiler.set_stance("fail_on_recompile"):
        bytes_of(denoiser, _rows("flux", 2, steps=12), 2)
