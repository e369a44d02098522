"""One image again."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.imaging.codecs import decode_image
from imagekiln.steps.job.output import Png
from imagekiln.steps.local import run
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.storage.store import Store
from tests.faults import failing, image, manifests
from tests.runs import PROMPTS, Rows, fill, finished, job, not_ok, picture, planned, write_prompts


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return finished(tmp_path / "run")


def test_an_image_drawn_again_has_equal_bytes(store: Store, tmp_path: Path) -> None:
    row = manifests(store.uri)[13]
    result = reproduce(store.uri, str(row["image_id"]), tmp_path / "again.png")
    assert (result.equal, result.has_same_pixels, result.status_now, result.likeness) == (
        "bytes",
        True,
        "ok",
        None,
    )
    assert (tmp_path / "again.png").read_bytes() == image(store, row)
    assert result.then == result.now


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("batch", "most"), [(4, 4), (5, 2)], ids=["as planned", "halved"])
def test_an_image_has_the_place_in_a_batch_that_it_had_when_its_run_was_drawn(
    batch: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[tuple[str, int, int]] = []
    draw = Denoiser.draw

    def note_last_place(
        self: Denoiser, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
    ) -> Sequence[DrawnImage]:
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        places.extend((row.image_id, place, size) for place, row in enumerate(rows))
        return draw(self, rows, size, check)

    monkeypatch.setattr(Denoiser, "draw", note_last_place)
    # Of the small images more than one batch, then the large ones from place 0 again.
    rows = [row | {"width": 64 if index < batch + 1 else 32} for index, row in enumerate(PROMPTS)]
    prompts = write_prompts(tmp_path / "prompts.parquet", rows[: batch + 4])
    sizes = {"batch": {"images": batch}, "part": {"images": batch + 4}}
    uri = run(job(prompts, str(tmp_path / "out"), **sizes)).uri
    drawn = list(places)
    assert {place for _, place, _ in drawn} == {*range(most)}

    for image_id, place, size in drawn:
        places.clear()
        assert reproduce(uri, image_id, tmp_path / "again.png").equal == "bytes"
        assert places[-1] == (image_id, place, size)


def test_pixels_are_compared_where_the_bytes_were_packed_otherwise(
    store: Store, tmp_path: Path
) -> None:
    rgb = decode_image(image(store, manifests(store.uri)[0]))
    otherwise = io.BytesIO()
    Pillow.fromarray(rgb).save(otherwise, "PNG", compress_level=9)
    own = encode_drawn_image(DrawnImage(0, rgb), Png())
    digest = hashlib.sha256(otherwise.getvalue()).hexdigest()
    packed = replace(own, content=otherwise.getvalue(), sha256=digest)
    other = planned(tmp_path, str(tmp_path / "out"))
    fill(other, {0: packed})
    aggregate(other.uri)
    assert reproduce(other.uri, "row-0", tmp_path / "again.png").equal == "pixels"


def test_another_picture_is_measured(tmp_path: Path) -> None:
    other = planned(tmp_path, str(tmp_path / "out"))
    fill(other)
    aggregate(other.uri)
    result = reproduce(other.uri, "row-1", tmp_path / "again.png")
    assert (result.equal, result.has_same_pixels) == ("nothing", False)
    noise, again = picture(1).rgb, decode_image((tmp_path / "again.png").read_bytes())
    assert noise is not None
    apart = np.abs(noise.astype(int) - again.astype(int))
    assert result.likeness is not None
    assert result.likeness.largest == apart.max()
    assert result.likeness.mean == pytest.approx(apart.mean())
    assert result.likeness.psnr == pytest.approx(10 * np.log10(255**2 / np.mean(apart**2)))


def test_an_image_that_failed_is_drawn_and_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    fill(planned_run, {5: not_ok(5)})
    aggregate(planned_run.uri)
    name = str(manifests(planned_run.uri)[5]["image_id"])
    result = reproduce(planned_run.uri, name, tmp_path / "again.png")
    assert (result.status_then, result.status_now, result.has_same_pixels, result.likeness) == (
        "failed",
        "ok",
        False,
        None,
    )
    with failing(str(PROMPTS[5]["prompt"])):
        result = reproduce(planned_run.uri, name, tmp_path / "none.png")
    assert (result.equal, result.status_now, result.file, result.error) == (
        "nothing",
        "failed",
        None,
        "RuntimeError: cannot draw 'a red circle number 5'",
    )
    assert not (tmp_path / "none.png").exists()


def test_an_image_is_also_found_by_the_id_of_its_row(store: Store, tmp_path: Path) -> None:
    row = manifests(store.uri)[13]
    result = reproduce(store.uri, str(row["id"]), tmp_path / "again.png")
    assert (result.image_id, result.equal) == (row["image_id"], "bytes")


def test_the_id_of_a_row_with_several_images_is_refused_with_their_ids(tmp_path: Path) -> None:
    rows: Rows = [{"prompt": "a circle", "id": "circle", "images": 3}, {"prompt": "a", "id": "b"}]
    planned_run = planned(tmp_path, str(tmp_path / "out"), rows)
    fill(planned_run)
    aggregate(planned_run.uri)
    with pytest.raises(BadInput, match="3 images have the id 'circle'") as refusal:
        reproduce(planned_run.uri, "circle")
    ids = [str(row["image_id"]) for row in manifests(planned_run.uri) if row["id"] == "circle"]
    assert all(f"{image_id} (ok)" in str(refusal.value) for image_id in ids)


@pytest.mark.parametrize("name", ["0" * 32, "../../etc/passwd"])
def test_what_is_no_image_of_the_run_is_refused(name: str, store: Store) -> None:
    with pytest.raises(BadInput, match=r"image_id"):
        reproduce(store.uri, name)
