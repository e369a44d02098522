"""What a pipeline is told of a batch."""

import pytest
import torch

from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineInputs, PipelineKwargs
from imagekiln.steps.models.families import family_of
from tests import families, models
from tests.runs import image_row


def _tensor(inputs: PipelineKwargs, name: str) -> torch.Tensor:
    found = inputs[name]
    assert isinstance(found, torch.Tensor)
    return found


def test_noise_of_an_image_follows_from_its_seed_alone() -> None:
    told = PipelineInputs(models.pipe("sd"))
    alone = _tensor(told.noise_kwargs([image_row(seed=5)]), "latents")
    among = _tensor(
        told.noise_kwargs([image_row("b", 1, seed=4), image_row("c", 2, seed=5)]), "latents"
    )
    assert alone.shape == (1, 4, 8, 8)
    assert torch.equal(alone[0], among[1])
    assert not torch.equal(alone[0], among[0])


def test_noise_is_drawn_in_float32_and_then_cast() -> None:
    rows = [image_row(seed=5)]
    exact = _tensor(PipelineInputs(models.pipe("sd")).noise_kwargs(rows), "latents")
    rounded = _tensor(
        PipelineInputs(models.pipe("sd").to(torch.bfloat16)).noise_kwargs(rows), "latents"
    )
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, exact.to(torch.bfloat16))


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_families_known_to_be_equal_get_embeddings_for_both_texts(kind: models.Kind) -> None:
    told = PipelineInputs(models.pipe(kind)).text_kwargs(
        [image_row(), image_row("b", 1, negative_prompt="c")]
    )
    known = family_of(type(models.pipe(kind)).__name__)
    assert told.pop("negative_prompt") is None
    assert set(told) == {*known.positive_embeds, *known.negative_embeds}
    assert {len(_tensor(told, name)) for name in told} == {2}


def test_without_guidance_no_negative_prompt_is_encoded() -> None:
    told = PipelineInputs(models.pipe("sd")).text_kwargs(
        [image_row(guidance=1.0, negative_prompt="c")]
    )
    assert set(told) == {"prompt_embeds", "negative_prompt"}
    assert told["negative_prompt"] is None


def test_only_families_that_neighbours_may_change_are_drawn_one_by_one() -> None:
    rows = [image_row(place=place) for place in range(3)]
    sizes = {
        kind: [len(call) for call in PipelineInputs(families.pipe(kind)).split_batches(rows, 4)]
        for kind in ("sd", "z-image")
    }
    assert sizes == {"sd": [4], "z-image": [1, 1, 1]}


def test_a_pipeline_that_is_not_known_is_drawn_by_the_plain_path_one_by_one() -> None:
    pipe = models.pipe("sd")
    unknown = type("AnotherPipeline", (type(pipe),), {})(
        **pipe.components, requires_safety_checker=False
    )
    told = PipelineInputs(unknown)
    rows = [image_row("a"), image_row("b", 1, negative_prompt="c")]
    assert told.split_batches(rows, 4) == [[rows[0]], [rows[1]]]
    assert told.text_kwargs(rows[1:]) == {"prompt": ["b"], "negative_prompt": ["c"]}
    assert set(told.settings_kwargs(rows[0])) == {
        "width",
        "height",
        "num_inference_steps",
        "guidance_scale",
    }
