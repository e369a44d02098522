"""The pixels: what we draw is what diffusers draws, bit for bit, whoever the neighbours are."""

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import diffusers
import numpy as np
import numpy.typing as npt
import pytest
import torch

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.generate.diffusion.variants import make_scheduler
from imagekiln.steps.job.columns import SAMPLERS, SCHEDULERS
from imagekiln.steps.models.own_settings import fitting_samplers
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runtime.signals import Stopped
from tests import models
from tests.models import Kind
from tests.runs import image_row

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

RGB = npt.NDArray[np.uint8]
KINDS: list[Kind] = ["shapes", "sd", "sdxl", "sd3", "flux"]
PROMPTS = ["a red circle", "a blue square on yellow", "two green triangles", "a red circle"]


def _rows(kind: Kind, **settings: object) -> list[ImageRow]:
    side = {"width": 64, "height": 64} if kind == "shapes" else {}
    seeds = {"seed": 0} if "seed" in settings else {}
    return [
        image_row(prompt, place, **{**side, **seeds, **settings})
        for place, prompt in enumerate(PROMPTS)
    ]


def _ours(kind: Kind, rows: Sequence[ImageRow], size: int = 4) -> list[RGB]:
    return [_rgb(picture) for picture in Denoiser(models.pipe(kind)).draw(rows, size, lambda: None)]


def _rgb(picture: DrawnImage) -> RGB:
    assert picture.status == "ok", picture.error
    assert picture.rgb is not None
    return picture.rgb


def _diffusers(
    kind: Kind, rows: Sequence[ImageRow], *, exact: bool = True, **more: object
) -> list[RGB]:
    """The same images by diffusers' own call, from the text itself, as its users write it.

    On some processors, a text encoder's last digit depends on how many texts it encodes at once.
    To compare bits, it encodes them one by one in the families in which we do.
    """
    first, pipe = rows[0].parameters, models.pipe(kind)
    pipe.scheduler = make_scheduler(pipe.scheduler, first.sampler)
    if exact:
        pipe.encode_prompt = _one_by_one(pipe.encode_prompt)
    drawn = pipe(
        [row.parameters.prompt for row in rows],
        generator=[torch.Generator("cpu").manual_seed(row.parameters.seed) for row in rows],
        width=first.width,
        height=first.height,
        num_inference_steps=first.steps,
        guidance_scale=first.guidance,
        **more,
    )
    return [np.asarray(image) for image in drawn.images]


def _one_by_one(encode: Callable[..., tuple[torch.Tensor | None, ...]]) -> Callable[..., object]:
    def encode_each(*places: object, **names: object) -> object:
        given = inspect.signature(encode).bind(*places, **names).arguments
        assert isinstance(given["prompt"], list)
        lists = {name: value for name, value in given.items() if isinstance(value, list)}
        each = [
            encode(**given | {name: [value[place]] for name, value in lists.items()})
            for place in range(len(given["prompt"]))
        ]
        return tuple(_joined(tensors) for tensors in zip(*each, strict=True))

    return encode_each


def _joined(tensors: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    # FLUX returns the positions of its tokens too: the same for all texts, without a batch axis.
    return torch.cat(present) if present and len(present[0]) == 1 else tensors[0]


def _equal(ones: Sequence[RGB], others: Sequence[RGB]) -> bool:
    return len(ones) == len(others) and all(map(np.array_equal, ones, others))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_images_are_those_of_diffusers_own_call(kind: Kind) -> None:
    rows = _rows(kind)
    drawn = _ours(kind, rows)
    assert _equal(drawn, _diffusers(kind, rows))
    assert all(image.std() > 1 for image in drawn)
    assert not np.array_equal(drawn[0], drawn[3])  # the same prompt from another seed


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_rescaled_guidance_draws_what_it_draws_in_diffusers(kind: Kind) -> None:
    rows = _rows(kind, guidance_rescale=0.7)
    drawn = _ours(kind, rows)
    assert _equal(drawn, _diffusers(kind, rows, guidance_rescale=0.7))
    assert not _equal(drawn, _ours(kind, _rows(kind)))


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("sampler", sorted(set(SCHEDULERS) - {"flow_euler"}))
@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_every_sampler_draws_what_it_draws_in_diffusers(kind: Kind, sampler: str) -> None:
    rows = _rows(kind, sampler=sampler, steps=4)
    assert _equal(_ours(kind, rows), _diffusers(kind, rows))


def test_a_sampler_leaves_no_trace_in_the_images_after_it() -> None:
    denoiser = Denoiser(models.pipe("sd"))
    rows = _rows("sd")
    first = [_rgb(each) for each in denoiser.draw(rows, 4, lambda: None)]
    denoiser.draw(_rows("sd", sampler="dpmpp_2m", steps=3), 4, lambda: None)
    assert _equal([_rgb(each) for each in denoiser.draw(rows, 4, lambda: None)], first)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_is_the_same_alone_first_and_last(kind: Kind, size: int) -> None:
    wanted, *others = [
        image_row(f"{PROMPTS[0]} {place}", place, **_side(kind)) for place in range(size)
    ]
    alone = _ours(kind, [wanted], size)[0]
    assert np.array_equal(_ours(kind, [wanted, *others], size)[0], alone)
    assert np.array_equal(_ours(kind, [*others, wanted], size)[-1], alone)


def _side(kind: Kind) -> dict[str, object]:
    return {"width": 64, "height": 64} if kind == "shapes" else {}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("sampler", ["ddpm", "dpmpp_2m_sde", "euler_a", "lcm"])
def test_noise_drawn_at_each_step_is_an_image_s_own(sampler: str) -> None:
    rows = _rows("sd", sampler=sampler, steps=4)
    assert np.array_equal(_ours("sd", rows[2:3])[0], _ours("sd", rows)[2])


def test_an_image_of_another_size_than_asked_fails() -> None:
    pipe = models.pipe("sd")
    pipe.vae.decode = lambda latents, **_: (torch.zeros(len(latents), 3, 32, 24),)
    with pytest.raises(
        ValueError, match="the model drew 24 x 32 pixels, which is the nearest size that it knows"
    ):
        Denoiser(pipe).draw(_rows("sd"), 4, lambda: None)


def test_a_stop_gives_up_in_the_middle_of_a_batch() -> None:
    asked = []

    def stop() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        Denoiser(models.pipe("sd")).draw(_rows("sd", steps=50), 4, stop)
    assert len(asked) == 2


def test_numbers_that_are_not_finite_make_only_their_own_image_blank() -> None:
    pipe = models.pipe("sd")
    whole = Denoiser(pipe).draw(_rows("sd"), 4, lambda: None)
    encode_prompt = pipe.encode_prompt

    @wraps(encode_prompt)
    def poisoned(prompt: list[str], *places: object, **names: object) -> tuple[torch.Tensor, ...]:
        embeds, negative = encode_prompt(prompt, *places, **names)
        return embeds * (float("nan") if prompt == ["poison"] else 1), negative

    pipe.encode_prompt = poisoned
    rows = [*_rows("sd")[:2], image_row("poison", 2), *_rows("sd")[3:]]
    found = Denoiser(pipe).draw(rows, 4, lambda: None)
    assert [each.status for each in found] == ["ok", "ok", "blank", "ok"]
    assert (found[2].rgb, found[2].error) == (None, "the model gave numbers that are not finite")
    for place in (0, 1, 3):
        assert np.array_equal(_rgb(found[place]), _rgb(whole[place]))


def test_a_text_that_cannot_be_encoded_fails_alone_and_its_neighbours_keep_their_bytes() -> None:
    pipe = models.pipe("sd")
    rows = _rows("sd")
    whole = [_rgb(each) for each in Denoiser(pipe).draw(rows, 4, lambda: None)]
    encode_prompt = pipe.encode_prompt

    @wraps(encode_prompt)
    def poisoned(prompt: list[str], *places: object, **names: object) -> tuple[torch.Tensor, ...]:
        if prompt == [PROMPTS[1]]:
            raise IndexError("a token out of range")
        embeds: tuple[torch.Tensor, ...] = encode_prompt(prompt, *places, **names)
        return embeds

    pipe.encode_prompt = poisoned
    denoiser = Denoiser(pipe)
    found = next(
        BatchRecovery(
            lambda rows, size: denoiser.draw(rows, size, lambda: None), lambda _: 4
        ).draw_batches(rows)
    )
    assert [each.status for each in found] == ["ok", "failed", "ok", "ok"]
    assert found[1].error == "IndexError: a token out of range"
    assert all(np.array_equal(_rgb(found[place]), whole[place]) for place in (0, 2, 3))


ZERO_SNR = "rescale_betas_zero_snr"
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
CONFIGURATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False, "steps_offset": 1}),
    "v-prediction": ("DDIMScheduler", {"prediction_type": "v_prediction"}),
    "sdxl": ("EulerDiscreteScheduler", {"beta_schedule": "scaled_linear"}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "sana": ("DPMSolverMultistepScheduler", FLOW),
    "flow-unipc": ("UniPCMultistepScheduler", FLOW),
    "zero-snr": (
        "EulerDiscreteScheduler",
        {ZERO_SNR: True, "prediction_type": "v_prediction"},
    ),
    "flux": ("FlowMatchEulerDiscreteScheduler", {}),
    "flow-heun": ("FlowMatchHeunDiscreteScheduler", {}),
    "lcm": ("LCMScheduler", {}),
    "tcd": ("TCDScheduler", {}),
}


def _runs(own: models.Untyped, sampler: str) -> bool:
    """Whether a sampler makes four steps with the configuration of a model's own scheduler."""
    try:
        scheduler = copy.deepcopy(make_scheduler(own, sampler))
        if (
            own.config.get(ZERO_SNR)
            and ZERO_SNR not in inspect.signature(type(scheduler)).parameters
        ):
            return False  # it would draw as if nothing were said
        scheduler.set_timesteps(4)
        generator = torch.Generator().manual_seed(0)
        sample = torch.randn(1, 4, 8, 8, generator=generator)
        takes_generator = "generator" in inspect.signature(scheduler.step).parameters
        options = {"generator": generator} if takes_generator else {}
        for time in scheduler.timesteps:
            predicted = torch.randn(1, 4, 8, 8, generator=generator)
            sample = scheduler.step(predicted, time, sample, **options).prev_sample
    except (ValueError, NotImplementedError, ImportError):
        return False
    return bool(torch.isfinite(sample).all())


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_planning_accepts_the_samplers_that_run_with_a_models_scheduler(
    kind: str, tmp_path: Path
) -> None:
    name, config = CONFIGURATIONS[kind]
    own = getattr(diffusers, name)(**config)
    own.save_pretrained(tmp_path / "scheduler")
    fit = fitting_samplers(tmp_path, {})
    assert fit.scheduler == name
    assert fit.samplers == tuple(sampler for sampler in SAMPLERS if _runs(own, sampler))
