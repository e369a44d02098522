"""Which pipelines draw from a text alone: the names' answer, held to what diffusers' own classes take."""

import inspect

import diffusers
import pytest
from diffusers.pipelines import auto_pipeline

from imagekiln.steps.models.families import FAMILIES, unsupported_reason

VIDEO = {"num_frames", "video", "video_length"}
CLASSES = {name: found for name in dir(diffusers) if isinstance(found := getattr(diffusers, name), type)
           and issubclass(found, diffusers.DiffusionPipeline) and found is not diffusers.DiffusionPipeline}  # fmt: skip


def _named(table: str) -> set[str]:
    return {
        found.__name__
        for found in getattr(auto_pipeline, f"AUTO_{table}_PIPELINES_MAPPING").values()
    }


FROM_TEXT = _named("TEXT2IMAGE")


def test_no_known_family_is_refused() -> None:
    assert not [name for name in FAMILIES if unsupported_reason(name)]


def test_a_pipeline_of_tomorrow_is_given_a_chance() -> None:
    assert unsupported_reason("SomethingNewPipeline") is None


def test_what_diffusers_counts_among_text_to_image_is_refused_only_for_a_picture_for_video_or_for_its_stages() -> (
    None
):
    found = {name for name in FROM_TEXT if unsupported_reason(name)}
    video = {"HeliosPipeline", "HeliosPyramidPipeline"}
    stages = {"IFPipeline", "KandinskyCombinedPipeline", "KandinskyV22CombinedPipeline"}
    assert {name for name in found if "Control" not in name} == video | stages


@pytest.mark.parametrize(
    "table", ["IMAGE2IMAGE", "INPAINT", "TEXT2VIDEO", "IMAGE2VIDEO", "VIDEO2VIDEO", "TEXT2AUDIO"]
)
def test_what_diffusers_counts_among_other_tasks_is_refused(table: str) -> None:
    assert not {name for name in _named(table) - FROM_TEXT if not unsupported_reason(name)}


def test_a_class_whose_call_takes_no_text_or_more_than_a_text_is_refused() -> None:
    assert not [
        name
        for name, found in CLASSES.items()
        if _takes_more(found) and not unsupported_reason(name)
    ]


def _takes_more(found: type) -> bool:
    taken = inspect.signature(found.__call__).parameters
    needed = {
        name
        for name, each in taken.items()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    }
    return "prompt" not in taken or bool(needed - {"self", "prompt"}) or bool(VIDEO & taken.keys())
