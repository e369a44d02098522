"""IP-Adapters of transformers: whole jobs, slots that know nothing of each other, and what is refused."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from imagekiln.steps import names, tables
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate import loader
from imagekiln.steps.input_picture import opened
from imagekiln.steps.reproduce import reproduce
from imagekiln.steps.rows import ImageRow, image_rows
from imagekiln.steps.run import run
from imagekiln.steps.storage import open_store
from imagekiln.steps.verify import verify
from tests import adapters, models
from tests.adapters import Transformer
from tests.pictures import half, noise
from tests.runs import image_row, job, planned, write_prompts

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

FILE = "adapter.safetensors"
KINDS: list[Transformer] = ["flux", "sd3"]
ADAPTERS: Mapping[Transformer, Callable[[], Path]] = {
    "flux": adapters.flux_ip_adapter,
    "sd3": adapters.sd3_ip_adapter,
}
PROMPTS = ["a red circle", "a blue square on yellow", "two green triangles", "a star"]
BARE: dict[str, object] = {
    "width": models.SIDE, "height": models.SIDE, "source_image": None, "mask_image": None, "reference_image": None,
}  # fmt: skip
PLAIN: dict[str, object] = {"prompt": "a square", **BARE}


def _model(kind: Transformer, folder: Path | None = None) -> dict[str, object]:
    adapter = {"id": str(folder or ADAPTERS[kind]()), "weight_name": FILE, "scale": 0.8}
    return {"id": str(models.folder(kind)), "dtype": "float32", "ip_adapter": adapter}


def _rows(*columns: str) -> list[dict[str, object]]:
    """Four rows with pictures in these columns, another picture for each row, but for masks."""
    return [
        {"prompt": prompt, **BARE, **{name: half() if name == "mask_image" else noise(place) for name in columns}}
        for place, prompt in enumerate(PROMPTS)
    ]


def _opened(
    folder: Path, kind: Transformer, rows: list[dict[str, object]], adapter: Path | None = None
) -> tuple[Denoiser, list[ImageRow]]:
    there = planned(folder, str(folder / "out"), rows, model=_model(kind, adapter))
    store = open_store(there.uri)
    return loader(store, there.plan)(), image_rows(tables.read(store, names.shard(0)))


def _bytes(denoiser: Denoiser, rows: list[ImageRow], size: int) -> list[bytes]:
    drawn = denoiser.draw(rows, size, lambda: None)
    assert [(each.status, each.error) for each in drawn] == [("ok", None)] * len(rows)
    return [each.rgb.tobytes() for each in drawn if each.rgb is not None]


def _like(row: ImageRow, **changes: object) -> ImageRow:
    same = {name: getattr(row.pixels, name) for name in type(row.pixels).__slots__ if name != "prompt"}
    return image_row(row.pixels.prompt, **{**same, **changes})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beside", [[], ["source_image"], ["source_image", "mask_image"]], ids="+".join)
def test_an_image_has_the_same_bytes_in_every_slot_and_follows_its_own_reference(
    tmp_path: Path, kind: Transformer, beside: list[str]
) -> None:
    denoiser, rows = _opened(tmp_path, kind, _rows("reference_image", *beside))
    for width in (models.SIDE, 2 * models.SIDE):
        shaped = [_like(row, width=width) for row in rows]
        for size in (2, 4):
            whole = _bytes(denoiser, shaped[:size], size)
            assert whole == _bytes(denoiser, shaped[:size][::-1], size)[::-1]
            assert whole[1:2] == _bytes(denoiser, shaped[1:2], size)
    other = _like(rows[0], reference_image=rows[3].pixels.reference_image)
    assert _bytes(denoiser, [other], 4) != _bytes(denoiser, rows[:1], 4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_a_reference_is_drawn_as_by_the_model_alone(tmp_path: Path, kind: Transformer) -> None:
    denoiser, found = _opened(tmp_path, kind, [*_rows("reference_image")[:1], PLAIN])
    plain = [row for row in found if row.pixels.reference_image is None]
    _bytes(denoiser, [row for row in found if row not in plain], 4)
    assert _bytes(denoiser, plain, 4) == _bytes(Denoiser(models.pipe(kind)), plain, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ip_adapter_draws_what_it_draws_in_diffusers(tmp_path: Path, kind: Transformer) -> None:
    denoiser, rows = _opened(tmp_path, kind, _rows("reference_image")[:1])
    pipe, folder = models.pipe(kind), ADAPTERS[kind]()
    if kind == "flux":
        encoder = {
            "image_encoder_pretrained_model_name_or_path": folder / "image_encoder",
            "image_encoder_dtype": torch.float32,
        }
        pipe.load_ip_adapter(folder, weight_name=FILE, **encoder)
    else:
        pipe.image_encoder = transformers.SiglipVisionModel.from_pretrained(folder / "image_encoder")
        pipe.feature_extractor = transformers.SiglipImageProcessor.from_pretrained(folder / "image_encoder")
        pipe.load_ip_adapter(folder, weight_name=FILE)
    pipe.set_ip_adapter_scale(0.8)
    (theirs,) = pipe(
        PROMPTS[0],
        ip_adapter_image=opened(noise(0)),
        width=models.SIDE,
        height=models.SIDE,
        num_inference_steps=2,
        guidance_scale=3.0,
        generator=[torch.Generator("cpu").manual_seed(rows[0].pixels.seed)],
    ).images
    assert _bytes(denoiser, rows, 1) == [np.asarray(theirs).tobytes()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_is_encoded_once_and_no_black_picture_ever(tmp_path: Path, kind: Transformer) -> None:
    denoiser, rows = _opened(tmp_path, kind, _rows("reference_image"))
    counted = []
    denoiser._pipe.image_encoder.register_forward_hook(lambda *_: counted.append(1))
    for _ in range(2):
        _bytes(denoiser, rows, 4)
    assert len(counted) == len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_runs_is_verified_and_reproduced(tmp_path: Path, kind: Transformer) -> None:
    rows = [*_rows("reference_image")[:2], *_rows("reference_image", "source_image")[2:], PLAIN]
    done = run(job(write_prompts(tmp_path / "p.parquet", rows), str(tmp_path / "out"), model=_model(kind)))
    assert (done.summary.images, done.summary.ok) == (5, 5)
    assert verify(done.uri).ok == 5
    for row in tables.read(open_store(done.uri), names.manifest(0)).to_pylist()[::2]:
        assert reproduce(done.uri, row["image_id"], tmp_path / "again.png").equal == "bytes"
