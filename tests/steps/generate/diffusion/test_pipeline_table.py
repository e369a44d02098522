"""`docs/pipelines.md` says of each image pipeline of the installed diffusers what is so."""

from types import ModuleType

import pytest

from imagekiln.steps.models.families import unsupported_reason
from tests import models, pipeline_table
from tests.models import Untyped

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning"),
]
KINDS = [(source, kind) for source in pipeline_table.SOURCES for kind in source.MAKE]


def _name(each: tuple[ModuleType, str]) -> str:
    return each[1]


def test_the_page_knows_every_pipeline_of_diffusers_that_makes_images() -> None:
    text = pipeline_table.PAGE.read_text()
    missing = [name for name in pipeline_table.image_pipelines() if f"`{name}`" not in text]
    assert not missing, "run `make pipeline-table`"
    assert text.endswith(pipeline_table.rest(pipeline_table.read_page()))


def test_sixty_pipelines_are_generated_and_none_is_left_without_a_word() -> None:
    drawn = {*pipeline_table.read_page(), *pipeline_table.variants()}
    assert len(drawn) >= 60
    assert not drawn & {*pipeline_table.NOT_DRAWN}
    assert pipeline_table.UNTESTED not in pipeline_table.PAGE.read_text()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("each", KINDS, ids=_name)
def test_the_page_says_how_a_pipeline_is_generated(each: tuple[Untyped, str]) -> None:
    source, kind = each
    pipe = source.pipe(kind)
    name = type(pipe).__name__
    if unsupported_reason(name) is not None:
        assert name not in pipeline_table.read_page()
        return
    denoiser = pipeline_table.after_batch(pipe, pipeline_table.side_of(*each))
    assert pipeline_table.read_page()[name] == pipeline_table.cells_of(pipe, denoiser)
