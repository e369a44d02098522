"""Runs read back as a dataset: every image that is ok, once, for each kind of reader."""

import hashlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import imagekiln
from imagekiln import BadInput, Missing, TryAgain
from imagekiln.results import Dataset
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.imaging.codecs import hash_pixels
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.plan.step import PlanResult
from tests.exports import retried_run
from tests.faults import manifest_names
from tests.runs import Rows, begin_retry, fill, not_ok, planned

NIGHTS = ("monday", "tuesday", "friday")
IMAGES = 10
FAILED = 3  # in the run itself; a retry makes it again
FILTERED = 5


def make_run(scratch: Path, output: str, rows: Rows, **changes: object) -> None:
    """An aggregated run of noise."""
    result = planned(scratch, output, rows, **changes)
    fill(result)
    aggregate(result.uri)


def make_night(scratch: Path, output: str, night: str) -> str:
    """A run whose failed image a retry made again; another one stays without an image."""
    rows = [{"prompt": f"number {index}", "tag": night} for index in range(IMAGES)]
    outcomes = {FAILED: not_ok(0), FILTERED: not_ok(0, "filtered")}
    return retried_run(scratch, output, rows, night, "tag", outcomes)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output with three retried runs, one without images, and an unfinished one."""
    folder = tmp_path_factory.mktemp("dataset")
    output = str(folder / "nights")
    for night in NIGHTS:
        make_night(folder / night, output, night)
    new = [{"prompt": "number 0"}, {"prompt": "a new one"}]
    make_run(folder, output, new, run_id="new", skip_existing=True)
    make_run(folder, output, new, run_id="nothing-new", skip_existing=True)
    planned(folder / "open", output, [{"prompt": "never made"}], run_id="unfinished")
    return output


def rows_of(dataset: Dataset) -> Iterator[dict[str, object]]:
    """The rows of all batches."""
    for batch in dataset.to_batches(3):
        yield from batch.to_pylist()


def test_a_run_gives_each_image_that_is_ok_once(output: str) -> None:
    dataset = imagekiln.dataset(f"{output}/friday")
    rows = list(rows_of(dataset))
    assert [row["input_row"] for row in rows] == [n for n in range(IMAGES) if n != FILTERED]
    assert dataset.count_rows() == len(rows)
    assert {row["run_id"] for row in rows} == {"friday"}
    for row in rows:
        image = row["image"]
        assert isinstance(image, dict)
        assert hashlib.sha256(image["bytes"]).hexdigest() == row["sha256"]
        assert image["path"] == f"{row['image_id']}.png"


def test_an_output_gives_all_finished_runs_with_the_columns_of_each(output: str) -> None:
    dataset = imagekiln.dataset(output, columns=["run_id", "tag", "prompt"])
    rows = list(rows_of(dataset))
    assert dataset.schema.names == ["run_id", "tag", "prompt"]
    assert len(rows) == dataset.count_rows() == 3 * (IMAGES - 1) + 1
    tags = {row["run_id"]: row["tag"] for row in rows}
    assert tags == {name: name for name in NIGHTS} | {"new": None}


def test_manifests_are_those_that_the_highest_commits_name(output: str) -> None:
    names = imagekiln.manifests(output)
    rows = pa.concat_tables([pq.read_table(name, columns=["status"]) for name in names])
    assert rows.num_rows == 3 * IMAGES + 1
    assert imagekiln.manifests(f"{output}/friday") == [
        f"{output}/friday/{name}" for name in manifest_names(f"{output}/friday")
    ]


def test_a_filter_selects_rows_by_any_column(output: str) -> None:
    some = imagekiln.dataset(
        output,
        columns=["input_row"],
        filter=(pc.field("tag") == "friday") & (pc.field("input_row") >= 7),
    )
    assert [row["input_row"] for row in rows_of(some)] == [7, 8, 9]
    assert some.count_rows() == 3


def test_mistakes_are_told_in_a_sentence(output: str, tmp_path: Path) -> None:
    with pytest.raises(Missing, match="neither a run nor a folder with finished runs"):
        imagekiln.dataset(tmp_path)
    file = tmp_path / "prompts.csv"
    file.write_text("prompt")
    with pytest.raises(BadInput, match=f"^{file}: is neither a run nor"):
        imagekiln.dataset(file)
    with pytest.raises(BadInput, match="has no column 'nope'"):
        imagekiln.dataset(output, columns=["nope"])
    with pytest.raises(BadInput, match="no column is named"):
        imagekiln.dataset(output, columns=[])
    with pytest.raises(BadInput, match="Correct the filter"):
        imagekiln.dataset(output, filter=pc.field("nope") == 1).count_rows()
    with pytest.raises(
        imagekiln.Incomplete, match="has no manifest, so its images cannot be read yet"
    ):
        imagekiln.dataset(f"{output}/unfinished")


def test_a_column_whose_type_differs_has_to_be_left_out(tmp_path: Path) -> None:
    for number, tag in enumerate(["a", 1]):
        rows = [{"prompt": f"{number}", "tag": tag}]
        make_run(tmp_path, str(tmp_path / "out"), rows, run_id=f"n{number}", carry=["tag"])
    with pytest.raises(BadInput, match=r"column 'tag' is string in .*n0 and int64 in .*n1"):
        imagekiln.dataset(tmp_path / "out")
    assert imagekiln.dataset(tmp_path / "out", columns=["prompt"]).count_rows() == 2


def test_images_that_are_taken_down_while_they_are_read_are_no_damage(tmp_path: Path) -> None:
    rows = [{"prompt": f"number {index}", "id": f"row-{index}"} for index in range(4)]
    make_run(tmp_path, str(tmp_path / "out"), rows, run_id="run")
    batches = imagekiln.dataset(str(tmp_path / "out" / "run")).to_batches(1)
    next(batches)
    forget(str(tmp_path / "out" / "run"), ForgetSelection(ids=("row-3",)), remove=True)
    with pytest.raises(TryAgain, match="was changed while it was read"):
        list(batches)


def test_whoever_reads_while_a_retry_is_counted_gets_all_of_what_was_before(tmp_path: Path) -> None:
    rows = [{"prompt": f"number {index}"} for index in range(8)]
    run = planned(tmp_path, str(tmp_path / "out"), rows, limits={"failed_share": 0.5})
    fill(run, {2: not_ok(2), 6: not_ok(2)})
    aggregate(run.uri)
    opened = imagekiln.dataset(run.uri, columns=["input_row"])
    batches = opened.to_batches(1)
    next(batches)
    fill(PlanResult(begin_retry(run), run.uri, adopted=False))
    aggregate(run.uri)
    assert len(list(batches)) + 1 == opened.count_rows() == 6
    assert imagekiln.dataset(run.uri).count_rows() == 8


def test_hugging_face_gets_decoded_images(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    dataset = imagekiln.dataset(output, columns=["image", "pixels_sha256"])
    for rows in (dataset.to_hf(), dataset.to_hf(streaming=True)):
        pixels = [hash_pixels(np.asarray(row["image"])) for row in rows]
        assert pixels == [row["pixels_sha256"] for row in rows_of(dataset)]


def test_the_example_of_the_documentation_runs(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    text = Path(__file__).parents[3].joinpath("docs/dataset.md").read_text()
    after = text.partition("## From Python")[2].partition("```python\n")[2]
    example = tmp_path / "example.py"
    example.write_text(after.partition("```")[0].replace("s3://datasets/postcards", output))
    names = runpy.run_path(str(example))
    assert names["images"].count_rows() == 3 * (IMAGES - 1) + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_ranks_of_pytorch_share_the_images(
    output: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = imagekiln.dataset(output, columns=["image", "image_id", "run_id"])
    seen = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = DataLoader(dataset.to_torch(), batch_size=None, num_workers=workers)
        seen += [(row["run_id"], row["image_id"], row["image"].size) for row in loader]
    expected = [(row["run_id"], row["image_id"], (16, 16)) for row in rows_of(dataset)]
    assert sorted(seen) == sorted(expected)


def test_ranks_that_the_environment_tells_only_in_part_are_refused(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = imagekiln.dataset(output, columns=["image_id"]).to_torch()
    for rank, world_size in (("", "2"), ("2", "2"), ("3", ""), ("0", "many")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(BadInput, match=r"Initialize torch\.distributed"):
            next(iter(images))


def test_an_error_in_a_worker_of_pytorch_says_what_to_do(tmp_path: Path) -> None:
    make_run(tmp_path, str(tmp_path / "out"), [{"prompt": "a"}], run_id="run")
    (part,) = (tmp_path / "out" / "run" / "images").iterdir()
    part.write_bytes(bytes(part.stat().st_size))
    images = imagekiln.dataset(str(tmp_path / "out" / "run")).to_torch()
    with pytest.raises(BadInput, match="says how to generate it again"):
        list(DataLoader(images, batch_size=None, num_workers=1))


def test_images_come_in_batches_of_the_given_size(output: str) -> None:
    dataset = imagekiln.dataset(output, columns=["image"])
    assert all(batch.num_rows <= 2 for batch in dataset.to_batches(2))
    assert pa.Table.from_batches(dataset.to_batches()).schema == dataset.schema
    with pytest.raises(BadInput, match="batch_size"):
        next(dataset.to_batches(0))
