"""Editing by instruction and reference images: each row reads its own references."""

import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from diffusers.pipelines.flux import pipeline_flux_kontext
from PIL import Image as Pillow

from imagekiln import dataset
from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.local import run
from imagekiln.steps.models.families import CallSignature, known_call_of
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import editors, families, models, plain, plain_unets, runs

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
]
# Pipelines that also draw without references, beside the editors.
ALSO_DRAWING = {
    **dict.fromkeys(("flux2", "klein"), families.folder),
    **dict.fromkeys(("qwen-image-2.1", "omnigen", "fibo2"), plain.folder),
    **dict.fromkeys(
        ("dreamlite", "FluxKontextPipeline", "Flux2KleinKVPipeline"), plain_unets.folder
    ),
}
FOLDERS = dict.fromkeys(editors.MAKE, editors.folder) | ALSO_DRAWING
BFLOAT16 = {"z-image-omni"}
# One for each way to be called: with a list, a single image, or an image of the planned size.
QUICK = ("klein", "qwen-image-edit", "pix2pix")
KINDS = [
    pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow, id=kind)
    for kind in sorted(FOLDERS)
    if kind not in ("flux-fill", "qwen-image-layered")
]
SCHEMA = pa.schema(
    {
        "prompt": pa.string(),
        "id": pa.string(),
        "reference_images": pa.list_(pa.binary()),
        "source_image": pa.binary(),
        "mask_image": pa.binary(),
        "seed": pa.int64(),
    }
)
Row = dict[str, object]


def _image(width: int, height: int, seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    sink = io.BytesIO()
    Pillow.fromarray(noise).resize((width, height)).save(sink, "PNG")
    return sink.getvalue()


# Modules of diffusers that scale every reference to a million pixels, and by what to divide these.
SCALING = {
    "qwenimage.pipeline_qwenimage_edit": 256,
    "qwenimage.pipeline_qwenimage_edit_plus": 256,
    "qwenimage21.pipeline_qwenimage21": 128,
}
# These draw only in sizes of their own.
OWN_SIZES = ("joy-edit", "kandinsky5-edit")


@pytest.fixture(autouse=True)
def _small_references(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, share in SCALING.items():
        module = importlib.import_module(f"diffusers.pipelines.{name}")
        scale = module.calculate_dimensions
        monkeypatch.setattr(module, "calculate_dimensions", _scaled(scale, share))
    sizes = [(64, 64), (96, 48), (48, 96)]
    monkeypatch.setattr(pipeline_flux_kontext, "PREFERRED_KONTEXT_RESOLUTIONS", sizes)


def _scaled(scale: Callable[[int, float], object], share: int) -> Callable[[int, float], object]:
    return lambda area, ratio: scale(area // share, ratio)


SQUARE, WIDE, TALL = _image(64, 64, 1), _image(128, 64, 2), _image(64, 96, 3)


def _call(kind: str) -> CallSignature:
    index = json.loads((FOLDERS[kind](kind) / "model_index.json").read_text())
    return known_call_of(index["_class_name"])


def _rows(kind: str) -> list[Row]:
    last = [TALL, WIDE] if _call(kind).max_images > 1 else [TALL]
    prompt = "a star in front of a wall"
    if kind == "fibo-edit":
        prompt = json.dumps({"edit_instruction": prompt})
    rows: list[Row] = [
        {"prompt": prompt, "id": str(place), "reference_images": images, "seed": 7}
        for place, images in enumerate(([SQUARE], [WIDE], last))
    ]
    for row, count in zip(rows, (1, 1, len(last)), strict=True):
        if kind == "omnigen":  # its prompts name each image
            names = [f"<img><|image_{number}|></img>" for number in range(1, count + 1)]
            row["prompt"] = " ".join([prompt, *names])
    if not _call(kind).needs_images:
        rows.append({"prompt": "a star", "id": "text", "reference_images": None, "seed": 7})
    return rows


def _edit(kind: str, rows: list[Row], folder: Path, **settings: object) -> dict[str, Pillow.Image]:
    """Run a whole job; return the image of each row by its id."""
    folder.mkdir()
    prompts = folder / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), prompts)
    model = {"id": str(FOLDERS[kind](kind)), "dtype": "float32"}
    if kind in BFLOAT16:
        model["dtype"] = "bfloat16"
    defaults: dict[str, object] = {"steps": 2}
    if kind in OWN_SIZES:
        defaults |= {"width": 1024, "height": 1024}
    changes = {"model": model, "defaults": defaults, **settings}
    done = run(runs.job(prompts, str(folder / "out"), **changes), NoProgress(), Stop())
    assert done.summary.ok == len(rows)
    return {
        row["id"]: Pillow.open(io.BytesIO(row["image"]["bytes"]))
        for batch in dataset(done.uri, ["id", "image"]).to_batches()
        for row in batch.to_pylist()
    }


@pytest.mark.parametrize("kind", ["klein", pytest.param("pix2pix", marks=pytest.mark.slow)])
def test_compiled_code_follows_references_of_any_size(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "COMPILE_OPTIONS", {"backend": "eager"})
    plain = _edit(kind, _rows(kind), tmp_path / "plain")
    compiled = _edit(kind, _rows(kind), tmp_path / "compiled", speed={"compile": "on"})
    for name, image in compiled.items():
        difference = np.asarray(image).astype(int) - np.asarray(plain[name])
        assert np.abs(difference).max() <= 1
    (run_folder,) = (tmp_path / "compiled" / "out").glob("tiny-*")
    stats = runs.stats_of(str(run_folder))
    assert stats is not None
    assert stats.compile_mode == "regional"


def test_a_pass_edits_each_image_of_the_run(tmp_path: Path) -> None:
    model = {"id": str(editors.folder("pix2pix")), "dtype": "float32"}
    edit = {"kind": "edit", "prompt": "{prompt} in front of a wall", "model": model, "steps": 2}
    rows: list[Row] = [{"prompt": prompt, "id": prompt} for prompt in ("a star", "a circle")]
    before = _edit("klein", rows, tmp_path / "before")
    after = _edit("klein", rows, tmp_path / "after", passes={"winter": edit})
    (alone,) = _edit("klein", rows[:1], tmp_path / "alone", passes={"winter": edit}).values()
    assert after["a star"].tobytes() == alone.tobytes() != before["a star"].tobytes()
    assert after["a star"].tobytes() != after["a circle"].tobytes()


def test_a_model_that_fills_masks_draws_what_they_cover(tmp_path: Path) -> None:
    mask = Pillow.new("L", (64, 64))
    mask.paste(255, (0, 0, 32, 64))
    sink = io.BytesIO()
    mask.save(sink, "PNG")
    rows: list[Row] = [
        {"prompt": "a star", "id": str(seed), "source_image": image, "mask_image": sink.getvalue()}
        for seed, image in enumerate((SQUARE, WIDE))
    ]
    images = _edit("flux-fill", rows, tmp_path / "fill")
    (alone,) = _edit("flux-fill", rows[:1], tmp_path / "alone").values()
    assert images["0"].tobytes() == alone.tobytes() != images["1"].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_no_image_sees_the_references_of_another_row(kind: str, tmp_path: Path) -> None:
    rows = _rows(kind)
    together = _edit(kind, rows, tmp_path / "together")
    reversed_ = _edit(kind, rows[::-1], tmp_path / "reversed")
    for row in rows:
        name = str(row["id"])
        (alone,) = _edit(kind, [row], tmp_path / name).values()
        assert alone.tobytes() == together[name].tobytes() == reversed_[name].tobytes()
    assert len({image.tobytes() for image in together.values()}) == len(rows)
