"""The settings of each kind of encoding."""

from pathlib import Path

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import (
    Encoding,
    Jpeg,
    Png,
    Webp,
    file_suffix,
    is_lossless,
    mime_type,
)
from imagekiln.steps.job.reader import validate_job
from tests import jobs
from tests.encodings import ALL, KINDS, LOSSLESS, encoding_label
from tests.smallest import SMALLEST


@pytest.mark.parametrize("encoding", ALL, ids=encoding_label)
def test_an_encoding_reads_back_from_its_stored_form(encoding: Encoding) -> None:
    job = validate_job({**SMALLEST, "encoding": encoding.model_dump()})
    assert job.encoding == encoding
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert Job(**{**dict(job), "encoding": encoding}) == job


def test_each_kind_has_a_suffix_and_a_name_of_its_own() -> None:
    assert [file_suffix(kind) for kind in KINDS] == [".png", ".jpg", ".webp"]
    assert [mime_type(kind) for kind in KINDS] == ["image/png", "image/jpeg", "image/webp"]


def test_the_lossless_encodings_are_those_that_keep_every_pixel() -> None:
    assert [encoding for encoding in ALL if is_lossless(encoding)] == [*LOSSLESS]


@pytest.mark.parametrize(("encoding", "most"), [(Webp(), 16_383), (Jpeg(), 65_535)], ids=str)
def test_images_too_wide_for_the_file_are_refused_at_planning(
    encoding: Encoding, most: int, tmp_path: Path
) -> None:
    prompts = {"prompt": ["a", "b"], "width": [8, most + 1], "height": [8, 8]}
    settings = {"encoding": encoding.model_dump(), "limits": {"rejected_share": 1}}
    (refused,) = jobs.rejected(jobs.plan(tmp_path / "a", prompts, **settings))
    assert refused["column_name"] == "width"
    assert refused["reason"] == f"is over {most} pixels, the most that {encoding.kind} holds"
    assert jobs.rejected(jobs.plan(tmp_path / "b", prompts, limits={"rejected_share": 1})) == []


def test_the_encoding_is_not_part_of_an_images_id(tmp_path: Path) -> None:
    kinds: dict[str, Encoding] = {"all": Png(), "mark": Jpeg(), "none": Webp()}
    ids = [
        jobs.image_rows(
            jobs.plan(
                tmp_path / each.kind, {"prompt": ["a"]}, encoding=each.model_dump(), metadata=notes
            )
        )
        for notes, each in kinds.items()
    ]
    assert len({rows["image_id"][0].as_py() for rows in ids}) == 1
