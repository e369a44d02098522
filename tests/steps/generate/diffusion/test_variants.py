"""Images drawn from input images: whole jobs, and slots of a batch."""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.generate.diffusion.adapters import InputImageReader, LoadedAdapters
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.local import run
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import families, models
from tests.faults import manifests
from tests.pictures import half, noise
from tests.runs import image_row, job, write_prompts

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

RGB = npt.NDArray[np.uint8]
KINDS = ["sd", "sdxl", "sd3", "flux", "lcm", "qwen-image", "z-image"]
INPAINT = [kind for kind in KINDS if kind != "lcm"]
PROMPTS = ["a red circle", "a blue square on yellow", "two green triangles", "a star"]


def _pipe(kind: str) -> models.Untyped:
    return models.pipe(kind) if kind in models.BUILD else families.pipe(kind)  # type: ignore[arg-type]


def _folder(kind: str) -> Path:
    return models.folder(kind) if kind in models.BUILD else families.folder(kind)


def _side(kind: str) -> int:
    return families.SIDES.get(kind, models.SIDE)


def _kept(store: Store, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    store.create(input_image_key(digest), content)
    return digest


def _rows(kind: str, store: Store, *, mask: bool = False, **settings: object) -> list[ImageRow]:
    side = _side(kind)
    more = {"mask_image": _kept(store, half())} if mask else {}
    return [
        image_row(
            prompt,
            place,
            **{"width": side, "height": side, "steps": 4, "strength": 0.5, **more, **settings},
            source_image=_kept(store, noise(place)),
        )
        for place, prompt in enumerate(PROMPTS)
    ]


def _drawn(pipe: models.Untyped, store: Store, rows: Sequence[ImageRow], size: int) -> list[RGB]:
    pictures = Denoiser(pipe, adapters=LoadedAdapters(InputImageReader(store))).draw(
        rows, size, lambda: None
    )
    assert [(each.status, each.error) for each in pictures] == [("ok", None)] * len(rows)
    return [each.rgb for each in pictures if each.rgb is not None]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("kind", "mask", "strength"),
    [
        *((kind, False, 0.5) for kind in KINDS),
        *((kind, True, strength) for kind in INPAINT for strength in (0.5, 1.0)),
    ],
)
@pytest.mark.parametrize("size", [2, 4])
def test_an_image_from_a_picture_has_the_same_bytes_in_every_slot(
    tmp_path: Path, kind: str, mask: bool, strength: float, size: int
) -> None:
    store, pipe = open_store(str(tmp_path)), _pipe(kind)
    rows = _rows(kind, store, mask=mask, strength=strength)
    whole = _drawn(pipe, store, rows[:size], size)
    other = _drawn(pipe, store, rows[:size][::-1], size)[::-1]
    alone = _drawn(pipe, store, rows[1:2], size)
    assert all(map(np.array_equal, whole, other))
    assert np.array_equal(whole[1], alone[0])
    assert not np.array_equal(whole[0], whole[1])


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
def test_images_from_pictures_are_those_of_diffusers_own_call(tmp_path: Path, kind: str) -> None:
    import diffusers
    import torch

    store, pipe = open_store(str(tmp_path)), _pipe(kind)
    (row, *_) = _rows(kind, store)
    assert row.parameters.source_image is not None
    picture = ImageOps.fit(Pillow.open(io.BytesIO(noise(0))), (16, 16), Pillow.Resampling.LANCZOS)
    (theirs,) = diffusers.AutoPipelineForImage2Image.from_pipe(_pipe(kind))(
        PROMPTS[0],
        image=picture,
        strength=0.5,
        num_inference_steps=4,
        guidance_scale=3.0,
        generator=[torch.Generator("cpu").manual_seed(0)],
    ).images
    (ours,) = _drawn(pipe, store, [row], 1)
    assert np.array_equal(ours, np.asarray(theirs))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_with_pictures_runs_is_verified_and_reproduced(tmp_path: Path, kind: str) -> None:
    side = _side(kind)
    masks = {"mask_image": half()} if kind in INPAINT else {}
    prompts: list[dict[str, object]] = [
        {"prompt": PROMPTS[0], "width": side, "height": side},
        {"prompt": PROMPTS[1], "width": side, "height": side, "source_image": noise(1)},
        {
            "prompt": PROMPTS[2],
            "width": 2 * side,
            "height": side,
            "source_image": noise(2),
            "strength": 1.0,
        },
        {"prompt": PROMPTS[3], "width": side, "height": side, "source_image": noise(3), **masks},
        {"prompt": "", "width": side, "height": side, "source_image": noise(4)},
    ]
    rows = [{"source_image": None, "mask_image": None, "strength": None, **row} for row in prompts]
    asked = job(
        write_prompts(tmp_path / "p.parquet", rows),
        str(tmp_path / "out"),
        model={"id": str(_folder(kind)), "dtype": "float32"},
        defaults={"steps": 4, "guidance": 3.0, "seed": 7},
        batch={"images": 2},
        limits={"rejected_share": 0.5},
    )
    done = run(asked)
    assert (done.summary.images, done.summary.ok) == (4, 4)
    assert verify(done.uri).ok == 4
    manifest = manifests(done.uri)
    assert sorted(row["strength"] or 0 for row in manifest) == [0, 0.8, 0.8, 1.0]
    picked = next(
        row for row in manifest if row["mask_image"] or (not masks and row["strength"] == 1.0)
    )
    again = reproduce(done.uri, picked["image_id"], tmp_path / "again.png")
    assert again.equal == "bytes"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("change", ["gone", "other"])
def test_a_picture_that_is_gone_or_changed_is_found_by_verify_and_not_drawn_from(
    tmp_path: Path, change: str
) -> None:
    rows = [{"prompt": "a", "source_image": noise(1)}]
    defaults = {"steps": 4, "guidance": 3.0, "seed": 7}
    done = run(
        job(write_prompts(tmp_path / "p.parquet", rows), str(tmp_path / "out"), defaults=defaults)
    )
    (picture,) = (Path(done.uri) / "inputs").iterdir()
    if change == "gone":
        picture.unlink()
    else:
        picture.write_bytes(noise(2))
    with pytest.raises(
        Incomplete,
        match="no such file" if change == "gone" else "has other bytes",
    ):
        verify(done.uri)
    image = manifests(done.uri)[0]["image_id"]
    with pytest.raises(
        BadInput,
        match="no such file" if change == "gone" else "is not the planned image",
    ):
        reproduce(done.uri, image, tmp_path / "again.png")
