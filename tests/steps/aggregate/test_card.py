"""The dataset's card: what a hub reads in it, and that texts of the user's stay texts."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard

from imagekiln.steps.aggregate.card import code_span, render_card
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.export.step import export
from imagekiln.steps.job.fields import PipelineSettings
from imagekiln.steps.job.job import CardSettings, Job, ModelSettings
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.models.passes import PassFacts
from imagekiln.steps.runs.plan import Plan, load_plan
from tests.runs import fill, finished, planned
from tests.texts import HOSTILE

# By name, because type checkers take this repository's folder `datasets` for the library.
datasets: Any = import_module("datasets")


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
    assert "| pass ` detail ` | refined by ` my-refiner `, float16 |" in text
    assert "secret" not in text


def test_code_span_ends_where_it_should() -> None:
    assert code_span("a`b``c") == "``` a`b``c ```"
    assert (
        code_span("two\nlines\u202e")
        == "` two\N{REPLACEMENT CHARACTER}lines\N{REPLACEMENT CHARACTER} `"
    )


def make_run(output: Path, images: int) -> None:
    """A finished run named "first" of so many images."""
    rows = [{"prompt": f"number {index}"} for index in range(images)]
    result = planned(output.parent / "first", str(output), rows, run_id="first")
    fill(result)
    aggregate(result.uri)


def load(folder: Path, tmp_path: Path) -> Any:  # noqa: ANN401  # no types
    """What `load_dataset` gives, from a cache of this test."""
    cache = str(tmp_path / "cache")
    return datasets.load_dataset(str(folder), split="train", cache_dir=cache)


def test_images_load_as_they_are_now_whatever_was_loaded_before(tmp_path: Path) -> None:
    output = tmp_path / "a" / "out"
    exported = tmp_path / "a" / "exported"
    make_run(output, 5)
    export(str(output), str(exported))
    folders = (output / "first", exported)
    assert [len(load(folder, tmp_path)) for folder in folders] == [5, 5]

    taken_down = load(exported, tmp_path)[2]["image_id"]
    forget(str(output), ForgetSelection(ids=(taken_down,)), [str(exported)], remove=True)
    for folder in folders:
        ids = [row["image_id"] for row in load(folder, tmp_path) if row.get("status", "ok") == "ok"]
        assert len(ids) == 4
        assert taken_down not in ids

    of_same_name = tmp_path / "b" / "out"
    make_run(of_same_name, 2)
    export(str(of_same_name), str(tmp_path / "b" / "exported"))
    for folder in (of_same_name / "first", tmp_path / "b" / "exported"):
        assert len(load(folder, tmp_path)) == 2
