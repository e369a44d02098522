"""Of images that several runs hold, an export and a dataset have those of the newest."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import imagekiln
from imagekiln import BadInput, TryAgain
from imagekiln.results import Dataset
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.plan.step import PlanResult
from tests.exports import mend
from tests.runs import fill, not_ok, planned
from tests.texts import chance

NIGHTS = 4
ROWS = 12
Row = dict[str, object]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nights of one job: rows come and go, texts are edited, images fail, rows share an image.

    Tests that change it copy it.
    """
    folder = tmp_path_factory.mktemp("newest")
    output = str(folder / "nights")
    choose = chance(11)
    for night in range(NIGHTS):
        numbers = choose.sample(range(ROWS), ROWS - 3)
        rows = [
            {
                "prompt": f"number {number}, edited {choose.choice((0, 0, night))} times",
                "id": f"row-{number}" if number else None,
                "seed": 5,
                "images": 2,
                "group": number % 3,
            }
            for number in numbers
        ]
        rows.append({**rows[0], "id": f"copy-{night}", "group": 4} if night == 2 else rows[0])
        run = planned(
            folder / f"{night}",
            output,
            rows,
            run_id=f"night-{night}",
            carry=["group"] if night else [],
            limits={"failed_share": 0.9},
        )
        fill(run, {place: not_ok(0) for place in choose.sample(range(2 * ROWS - 6), 5)})
        aggregate(run.uri)
    return output


def rows_of(dataset: Dataset) -> Iterator[Row]:
    for batch in dataset.to_batches():
        yield from batch.to_pylist()


def select_newest(rows: list[Row], column: str) -> list[Row]:
    """The rows of the newest run for each value, read the plain way: all in memory."""
    newest: dict[object, str] = {}
    for row in rows:
        newest[row[column]] = max(newest.get(row[column], ""), str(row["run_id"]))
    return [row for row in rows if row[column] is None or newest[row[column]] == row["run_id"]]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("column", ["image_id", "id", "group"])
def test_each_image_comes_once_and_each_value_from_the_newest_run_that_has_it(
    output: str, tmp_path: Path, column: str
) -> None:
    all_rows = list(rows_of(imagekiln.dataset(output)))
    without_older = select_newest(all_rows, column)
    expected = select_newest(without_older, "image_id")
    assert len(all_rows) > len(without_older)
    assert len(expected) == len({row["image_id"] for row in expected})

    dataset = imagekiln.dataset(output, newest_by=column)
    assert list(rows_of(dataset)) == expected
    assert dataset.count_rows() == len(expected)
    wide = imagekiln.dataset(
        output, ["image_id"], pc.field("run_id") != "night-3", newest_by=column
    )
    assert [row["image_id"] for row in rows_of(wide)] == [
        row["image_id"] for row in expected if row["run_id"] != "night-3"
    ]

    result = imagekiln.export(output, tmp_path, newest_by=column)
    exported = ds.dataset(tmp_path / "data").to_table(["image_id", "run_id"]).to_pylist()
    assert exported == [{key: row[key] for key in ("image_id", "run_id")} for row in expected]
    assert result.images == len(expected)
    again = imagekiln.export(output, tmp_path, newest_by=column)
    assert again.unchanged == result.images


def make_night(folder: Path, night: str, failed: tuple[int, ...]) -> PlanResult:
    """A night with the images of every other one, some of which failed."""
    rows = [{"prompt": f"number {place}", "id": f"row-{place}", "seed": 5} for place in range(4)]
    limits = {"failed_share": 0.9}
    run = planned(folder / night, str(folder / "nights"), rows, run_id=night, limits=limits)
    fill(run, dict.fromkeys(failed, not_ok(0)))
    aggregate(run.uri)
    return run


def test_rows_without_an_id_cannot_be_told_apart_by_it(tmp_path: Path) -> None:
    output = str(tmp_path / "nights")
    for night in ("older", "newer"):
        rows: list[Row] = [{"prompt": f"a {night} hat"}]
        run = planned(tmp_path / night, output, rows, run_id=night)
        fill(run)
        aggregate(run.uri)
    with pytest.raises(BadInput, match=r"no row has a value in id.* Set columns.id of the job"):
        imagekiln.export(output, tmp_path / "export", newest_by="id")
    assert imagekiln.export(output, tmp_path / "export").images == 2


def two_nights(folder: Path) -> tuple[str, PlanResult]:
    """The output of two nights with the same images, one of which failed in the newer, and that."""
    make_night(folder, "older", ())
    return str(folder / "nights"), make_night(folder, "newer", (1,))


def image_ids(dataset: Dataset) -> list[object]:
    return [row["image_id"] for row in rows_of(dataset)]


def test_image_that_a_newer_run_has_made_since_is_not_given_twice(tmp_path: Path) -> None:
    output, newer = two_nights(tmp_path)
    dataset = imagekiln.dataset(output, newest_by="image_id")
    opened = list(rows_of(dataset))
    mend(newer)
    assert list(rows_of(dataset)) == opened
    assert dataset.count_rows() == len(set(image_ids(dataset))) == 4
    anew = rows_of(imagekiln.dataset(output, newest_by="image_id"))
    assert {row["run_id"] for row in anew} == {"newer"}


def test_image_that_was_taken_down_in_the_newest_run_alone_is_not_lost(tmp_path: Path) -> None:
    output, newer = two_nights(tmp_path)
    dataset = imagekiln.dataset(output, newest_by="image_id")
    opened = image_ids(dataset)
    imagekiln.forget(newer.uri, ids=["row-2"], remove=True)
    with pytest.raises(TryAgain, match="was changed while it was read, as when images of it were"):
        image_ids(dataset)
    anew = imagekiln.dataset(output, newest_by="image_id")
    assert sorted(map(str, image_ids(anew))) == sorted(map(str, opened))
