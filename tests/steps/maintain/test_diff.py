"""Two runs side by side."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.job.output import Png
from imagekiln.steps.maintain.diff import Diff, StatusChange, diff
from imagekiln.steps.runs.image import DrawnImage, EncodedImage
from imagekiln.steps.runs.keys import DIFF_PAGE_KEY
from imagekiln.steps.storage import open_store
from tests.runs import PROMPTS, Rows, fill, finished, not_ok, planned
from tests.texts import HOSTILE


def noise_run(
    folder: Path,
    rows: Rows = PROMPTS,
    outcomes: dict[int, EncodedImage] | None = None,
    **changes: object,
) -> str:
    """A run of pictures of noise."""
    planned_run = planned(folder, str(folder / "out"), rows, limits={"failed_share": 1}, **changes)
    fill(planned_run, outcomes)
    aggregate(planned_run.uri)
    return planned_run.uri


def flat(place: int, level: int) -> EncodedImage:
    """A picture whose pixels are of one level, all but for the first."""
    rgb = np.full((16, 16, 3), level, dtype=np.uint8)
    rgb[0, 0] = 0
    return encode_drawn_image(DrawnImage(place, rgb), Png())


def page(result: Diff) -> str:
    return open_store(result.page.removesuffix("/index.html")).read(DIFF_PAGE_KEY).decode()


def test_numbers_of_two_runs(tmp_path: Path) -> None:
    first = noise_run(tmp_path / "a", PROMPTS[:10], {0: flat(0, 100), 1: not_ok(1), 2: flat(2, 90)})
    second = noise_run(
        tmp_path / "b",
        PROMPTS[2:12],
        {0: flat(0, 100), 1: not_ok(1, "blank")},
        defaults={"steps": 3, "guidance": 3.0, "seed": 7},
    )
    actual = diff(first, second, str(tmp_path / "page"))
    assert (actual.both, actual.only_first, actual.only_second) == (8, 2, 2)
    assert actual.changes == (StatusChange("ok", "blank", 1),)
    # Noise follows from the place in the part: rows 2 to 9 are at other places in the second run.
    assert (actual.pixels_equal, actual.sampled) == (0, 7)
    settings = {each.name: (each.first, each.second) for each in actual.settings}
    assert settings["defaults.steps"] == ("2", "3")
    assert "model files" not in settings


def test_distance_is_the_root_mean_square_over_the_sample(tmp_path: Path) -> None:
    first = noise_run(tmp_path / "a", PROMPTS[:2], {0: flat(0, 100), 1: flat(1, 50)})
    second = noise_run(tmp_path / "b", PROMPTS[:2], {0: flat(0, 110), 1: flat(1, 50)})
    actual = diff(first, second, str(tmp_path / "page"))
    assert (actual.both, actual.pixels_equal) == (2, 1)
    assert actual.rms == pytest.approx(10 * np.sqrt(255 / 256) / 2)


def test_a_run_is_equal_to_itself(tmp_path: Path, store_uri: str) -> None:
    store = finished(tmp_path / "run")
    actual = diff(store.uri, store.uri, f"{store_uri}/page")
    counts = (actual.both, actual.only_first, actual.only_second, actual.pixels_equal)
    assert (*counts, actual.rms) == (20, 0, 0, 20, 0.0)
    assert (actual.changes, actual.settings) == ((), ())
    target = open_store(f"{store_uri}/page")
    pictures = re.findall(r'<img src="([^"]+)"', page(actual))
    assert len(pictures) == 40
    assert all(target.exists(name) for name in pictures)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": row["prompt"]} for row in reversed(PROMPTS)],
        [{"id": row["id"], "prompt": f"{row['prompt']}, oil on canvas"} for row in PROMPTS],
    ],
    ids=["by texts, as one run has no ids", "by ids"],
)
def test_rows_pair_by_ids_or_texts(rows: Rows, tmp_path: Path) -> None:
    other = noise_run(tmp_path / "b", rows)
    actual = diff(noise_run(tmp_path / "a"), other, str(tmp_path / "page"))
    assert (actual.both, actual.only_first, actual.only_second) == (20, 0, 0)


def test_images_of_one_row_pair_by_their_index(tmp_path: Path) -> None:
    rows = [dict(row) | {"images": 3} for row in PROMPTS[:2]]
    actual = diff(
        noise_run(tmp_path / "a", rows),
        noise_run(tmp_path / "b", PROMPTS[:2]),
        str(tmp_path / "page"),
    )
    assert (actual.both, actual.only_first, actual.only_second) == (2, 4, 0)


def test_images_of_one_prompt_pair_in_their_order(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": prompt, "guidance": guidance, "seed": seed}
        for prompt in ("a kettle", "a pot")
        for guidance in (2.0, 4.0)
        for seed in (7, 8)
    ]
    first = noise_run(tmp_path / "a", rows)
    other = [row | {"guidance": row["guidance"] + 1} for row in rows[:7]]
    result = diff(first, noise_run(tmp_path / "b", other), str(tmp_path / "page"))
    assert (result.both, result.only_first, result.only_second, result.sampled) == (7, 1, 0, 7)


def test_hostile_texts_are_text_on_the_page(tmp_path: Path) -> None:
    texts = [*HOSTILE, "\x1b[31mred", '"><img src=x onerror=alert(1)>', "long " * 700]
    first = noise_run(tmp_path / "a", [{"prompt": text} for text in texts])
    html = page(diff(first, first, str(tmp_path / "page")))
    assert "<script" not in html
    pictures = re.findall(r'<img src="pairs/\d+-[ab]\.jpg" alt="[^"<>]*"', html)
    assert html.count("<img") == 2 * len(texts) == len(pictures)
    assert not {"\x1b", "\0"} & set(html)
    assert "onerror" in html
    assert len(html) < 40_000, "a text of a megabyte is cut"


def test_a_page_needs_two_aggregated_runs_and_a_folder_of_its_own(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    with pytest.raises(BadInput, match="is a run"):
        diff(store.uri, store.uri, store.uri)
    other = planned(tmp_path, str(tmp_path / "out"))
    with pytest.raises(Incomplete, match=f"imagekiln aggregate {other.uri}"):
        diff(store.uri, other.uri, str(tmp_path / "page"))
    assert not (tmp_path / "page").exists()
