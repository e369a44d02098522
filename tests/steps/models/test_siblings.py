"""The table of siblings against diffusers' own."""

import inspect

import diffusers
import pytest
from diffusers.pipelines import auto_pipeline

from imagekiln.steps.models.families import FAMILY_VARIANTS, variants_of


@pytest.mark.parametrize("name", FAMILY_VARIANTS)
def test_the_siblings_are_those_that_diffusers_makes(name: str) -> None:
    pipeline, known = getattr(diffusers, name).__name__, variants_of(name)
    for found, mapping in (
        (known.image_to_image, auto_pipeline.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING),
        (known.inpaint, auto_pipeline.AUTO_INPAINT_PIPELINES_MAPPING),
    ):
        theirs = auto_pipeline._get_task_class(mapping, pipeline, throw_error_if_not_exist=False)
        assert (theirs and theirs.__name__) == found


@pytest.mark.parametrize(
    "name", [name for name, each in FAMILY_VARIANTS.items() if each.ip_adapter_encoder]
)
def test_whatever_draws_with_an_ip_adapter_takes_its_embeddings(name: str) -> None:
    known = variants_of(name)
    for each in (name, known.image_to_image, known.inpaint):
        assert each is not None
        assert (
            "ip_adapter_image_embeds"
            in inspect.signature(getattr(diffusers, each).__call__).parameters
        )


def test_a_pipeline_that_is_not_known_takes_no_picture() -> None:
    assert variants_of("StrangePipeline").image_to_image is None
