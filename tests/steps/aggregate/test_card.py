"""The dataset's card: what a hub reads in it, and that texts of the user's stay texts."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard

from imagekiln.steps.aggregate.card import code_span, render_card
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.job.fields import PipelineSettings
from imagekiln.steps.job.job import CardSettings, Job, ModelSettings
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.models.passes import PassFacts
from imagekiln.steps.runs.plan import Plan, load_plan
from tests.runs import finished
from tests.texts import HOSTILE


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Summary]:
    """The plan and the sums of a finished run."""
    store = finished(tmp_path_factory.mktemp("card") / "run")
    return load_plan(store), load_summary(store)


def written(done: tuple[Plan, Summary], **changes: object) -> tuple[dict[str, Any], str]:
    """The front matter and the text of the card of such a run, its job changed."""
    frozen, sums = done
    job: Job = frozen.job.model_copy(update=changes)
    result = DatasetCard(render_card(replace(frozen, job=job), sums))  # the hub's own reader
    return yaml.safe_load(result.data.to_yaml()), result.text


def test_the_hub_reads_what_the_dataset_is_and_where_its_images_are(
    done: tuple[Plan, Summary],
) -> None:
    front, text = written(done)
    assert front["task_categories"] == ["text-to-image"]
    assert front["size_categories"] == ["n<1K"]
    (configuration,) = front["configs"]
    assert configuration["config_name"] == "default"
    assert configuration["data_files"] == [{"split": "train", "path": ["images/*.parquet"]}]
    assert configuration["description"].startswith("20 images, ")
    assert "license" not in front
    assert "20 images generated from prompts, of 20" in text
    for ok, size in [(999, "n<1K"), (1000, "1K<n<10K"), (10**12, "1B<n<10B")]:
        large = replace(done[1], statuses={"ok": ok})
        assert written((done[0], large))[0]["size_categories"] == [size]


@pytest.mark.parametrize(
    "text", [*HOSTILE, "---\nlicense: mit\n---", "``` | <b>", "&anchor *alias !!python/object x"]
)
def test_texts_of_the_user_s_stay_texts(text: str, done: tuple[Plan, Summary]) -> None:
    front, body = written(
        done,
        model=ModelSettings(id=text.replace("\0", "")),
        card=CardSettings(license="cc0-1.0"),
    )
    assert front["license"] == "cc0-1.0"
    [row] = [line for line in body.splitlines() if line.startswith("| model |")]
    assert row.replace("\\|", "").count("|") == 3


def test_models_that_drew_over_the_images_are_named(done: tuple[Plan, Summary]) -> None:
    frozen, sums = done
    model = PipelineSettings(id="/home/me/secret/my-refiner", dtype="float16")
    digest = f"sha256:{'0' * 64}"
    facts = PassFacts(digest, model=replace(frozen.model, digest=digest))
    plan = replace(frozen, passes={"detail": facts})
    _, text = written((plan, sums), passes={"detail": RefinePass(model=model)})
    assert "| pass ` detail ` | drawn over by ` my-refiner `, float16 |" in text
    assert "secret" not in text


def test_code_span_ends_where_it_should() -> None:
    assert code_span("a`b``c") == "``` a`b``c ```"
    assert (
        code_span("two\nlines\u202e")
        == "` two\N{REPLACEMENT CHARACTER}lines\N{REPLACEMENT CHARACTER} `"
    )
