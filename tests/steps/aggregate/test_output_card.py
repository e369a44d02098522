"""The card of an output: all its runs load as one dataset, and nothing else does."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.export.step import export
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.storage import open_store
from tests.runs import Rows, fill, not_ok, planned

# By name, because type checkers take this repository's folder `datasets` for the library.
datasets: Any = import_module("datasets")


def make_night(output: Path, run_id: str, rows: Rows, failed: int = 0, **changes: object) -> None:
    """A successful run of new images, the first `failed` of which have none."""
    changes = {"run_id": run_id, "skip_existing": True, "limits": {"failed_share": 0.5}} | changes
    result = planned(output.parent / run_id, str(output), rows, **changes)
    fill(result, {index: not_ok(0) for index in range(failed)})
    aggregate(result.uri)


def prompts(count: int, **columns: object) -> list[Mapping[str, object]]:
    """As many prompts, the first ones always the same, with these columns."""
    return [{"prompt": f"number {index}", **columns} for index in range(count)]


def load(folder: Path, tmp_path: Path, *name: str) -> Any:  # noqa: ANN401  # no types
    """What `load_dataset` gives, from a cache of this test."""
    cache = str(tmp_path / "cache")
    return datasets.load_dataset(str(folder), *name, split="train", cache_dir=cache)


def front_matter(output: Path) -> Any:  # noqa: ANN401  # YAML
    """The front matter of the output's card."""
    return yaml.safe_load((output / "README.md").read_text().split("---\n")[1])


def test_images_load_as_they_are_now_whatever_was_loaded_before(tmp_path: Path) -> None:
    nights = tmp_path / "a" / "nights"
    make_night(nights, "first", prompts(5))
    exported = tmp_path / "a" / "exported"
    export(str(nights), str(exported))
    folders = (nights, nights / "first", exported)
    assert [len(load(folder, tmp_path)) for folder in folders] == [5, 5, 5]

    taken_down = load(nights, tmp_path)[2]["image_id"]
    forget(str(nights), ForgetSelection(ids=(taken_down,)), [str(exported)], remove=True)
    for folder in folders:
        ids = [row["image_id"] for row in load(folder, tmp_path) if row.get("status", "ok") == "ok"]
        assert len(ids) == 4
        assert taken_down not in ids

    of_same_name = tmp_path / "b" / "nights"
    make_night(of_same_name, "first", prompts(2))
    export(str(of_same_name), str(tmp_path / "b" / "exported"))
    for folder in (of_same_name, of_same_name / "first", tmp_path / "b" / "exported"):
        assert len(load(folder, tmp_path)) == 2


def test_nights_load_as_one_dataset_with_nulls_for_columns_that_one_lacks(tmp_path: Path) -> None:
    output = tmp_path / "nights"
    make_night(output, "first", prompts(3, tag="a"), failed=1, carry=["tag"])
    make_night(output, "second", prompts(5, tag="b", weight=0.5), carry=["tag", "weight"])
    make_night(output, "empty", prompts(5))
    planned(tmp_path, str(output), prompts(9), run_id="unfinished")

    rows = load(output, tmp_path)
    assert sorted((row["run_id"], row["status"], row["tag"], row["weight"]) for row in rows) == [
        ("first", "ok", "a", None),
        ("first", "ok", "a", None),
        *[("second", "ok", "b", 0.5)] * 3,
    ]
    assert all(row["image"].size == (16, 16) for row in rows)
    assert (rows["created_at"][0].year, rows["model_revision"][0][:7]) == (2026, "sha256:")


def test_runs_that_do_not_fit_are_configurations_of_their_own(tmp_path: Path) -> None:
    output = tmp_path / "nights"
    make_night(output, "texts", prompts(1, tag="a"), carry=["tag"])
    make_night(output, "numbers", prompts(2, tag=1), carry=["tag"])
    names = [config["config_name"] for config in front_matter(output)["configs"]]
    assert names == ["default", "texts"]
    assert load(output, tmp_path)["tag"][:] == [1]
    assert load(output, tmp_path, "texts")["tag"][:] == ["a"]
    assert "with one of these names: ` texts `." in (output / "README.md").read_text()


def test_runs_with_images_of_another_kind_are_a_configuration_of_their_own(tmp_path: Path) -> None:
    output = tmp_path / "mixed"
    make_night(output, "png", prompts(3), skip_existing=False)
    make_night(output, "jpeg", prompts(4), encoding={"kind": "jpeg"}, skip_existing=False)
    configs = [config["config_name"] for config in front_matter(output)["configs"]]
    loaded = {name: load(output, tmp_path, name).num_rows for name in configs}
    assert loaded == {"default": 4, "png": 3}
    card = (output / "README.md").read_text()
    assert "This loads 4 of the 7 images, those of ` jpeg `." in card
    assert "with one of these names: ` png `." in card


def test_a_night_without_images_streams_as_an_empty_dataset(tmp_path: Path) -> None:
    output = tmp_path / "nights"
    make_night(output, "first", prompts(2))
    make_night(output, "empty", prompts(2))
    for folder in (output / "empty", output):
        stream = datasets.load_dataset(str(folder), split="train", streaming=True)
        assert len(list(stream)) == (2 if folder == output else 0)
    # What the library says of any dataset without rows.
    with pytest.raises(ValueError, match="corresponds to no data"):
        load(output / "empty", tmp_path)
    (rejected,) = map(str, output.glob("first/rejected-*.parquet"))
    assert not list(
        datasets.load_dataset("parquet", data_files=rejected, split="train", streaming=True)
    )


def test_a_readme_of_somebody_else_stays(tmp_path: Path) -> None:
    output = tmp_path / "nights"
    output.mkdir()
    (output / "README.md").write_text("# Mine\n")
    make_night(output, "first", prompts(1))
    assert (output / "README.md").read_text() == "# Mine\n"


def test_a_card_that_cannot_be_written_fails_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "nights"
    (output / "README.md").mkdir(parents=True)
    make_night(output, "first", prompts(1))
    assert open_store(str(output)).exists("first/_SUCCESS")
    assert "the card of all runs was not written" in caplog.text


def test_a_run_that_this_version_cannot_read_is_counted_and_not_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "nights"
    make_night(output, "old", prompts(1))
    (output / "old" / "plan.json").write_text('{"schema_version": 1}')
    make_night(output, "new", prompts(3))
    assert "the card of all runs leaves out old" in caplog.text
    assert "Not listed: 1 of another version, or damaged." in (output / "README.md").read_text()
    assert load(output, tmp_path).num_rows == 2
