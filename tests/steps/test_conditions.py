"""ControlNets and IP-Adapters: whole jobs, slots that know nothing of each other, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from imagekiln.steps import names, tables
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.generate import loader
from imagekiln.steps.reproduce import reproduce
from imagekiln.steps.rows import ImageRow, image_rows
from imagekiln.steps.run import run
from imagekiln.steps.storage import open_store
from imagekiln.steps.verify import verify
from tests import adapters, models
from tests.adapters import Kind
from tests.pictures import half, noise
from tests.runs import image_row, job, planned, write_prompts

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

KINDS: list[Kind] = ["sd", "sdxl"]
PROMPTS = ["a red circle", "a blue square on yellow", "two green triangles", "a star"]
PLAIN: dict[str, object] = {"source_image": None, "mask_image": None, "control_image": None, "reference_image": None}


def _model(kind: Kind) -> dict[str, object]:
    return {
        "id": str(models.folder(kind)),
        "dtype": "float32",
        "controlnet": {"id": str(adapters.controlnet(kind)), "scale": 0.7},
        "ip_adapter": {"id": str(adapters.ip_adapter(kind)), "weight_name": "adapter.safetensors", "scale": 0.8},
    }


def _rows(**pictures: object) -> list[dict[str, object]]:
    """Four rows with pictures of these columns, another picture for each row, but for masks."""
    return [
        {**PLAIN, "prompt": prompt, **{name: half() if name == "mask_image" else noise(place) for name in pictures}}
        for place, prompt in enumerate(PROMPTS)
    ]


ALL: list[dict[str, bool]] = [
    {"control_image": True},
    {"control_image": True, "source_image": True},
    {"control_image": True, "source_image": True, "mask_image": True},
    {"reference_image": True},
    {"reference_image": True, "source_image": True},
    {"reference_image": True, "control_image": True, "source_image": True, "mask_image": True},
]


def _opened(folder: Path, kind: Kind, rows: list[dict[str, object]]) -> tuple[Denoiser, list[ImageRow]]:
    there = planned(folder, str(folder / "out"), rows, model=_model(kind))
    store = open_store(there.uri)
    return loader(store, there.plan)(), image_rows(tables.read(store, names.shard(0)))


def _bytes(denoiser: Denoiser, rows: list[ImageRow], size: int) -> list[bytes]:
    drawn = denoiser.draw(rows, size, lambda: None)
    assert [(each.status, each.error) for each in drawn] == [("ok", None)] * len(rows)
    return [each.rgb.tobytes() for each in drawn if each.rgb is not None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pictures", ALL, ids=lambda each: "+".join(each))
def test_an_image_has_the_same_bytes_in_every_slot_and_follows_its_own_pictures(
    tmp_path: Path, kind: Kind, pictures: dict[str, bool]
) -> None:
    denoiser, rows = _opened(tmp_path, kind, _rows(**pictures))
    for size in (2, 4):
        whole = _bytes(denoiser, rows[:size], size)
        assert whole == _bytes(denoiser, rows[:size][::-1], size)[::-1]
        assert whole[1:2] == _bytes(denoiser, rows[1:2], size)
    for name in {*pictures} - {"mask_image"}:
        digest = getattr(rows[3].pixels, name)
        other = image_row(PROMPTS[0], **{**_settings(rows[0]), name: digest})
        assert _bytes(denoiser, [other], 4) != _bytes(denoiser, rows[:1], 4)


def _settings(row: ImageRow) -> dict[str, object]:
    return {name: getattr(row.pixels, name) for name in type(row.pixels).__slots__ if name != "prompt"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_pictures_is_drawn_as_by_the_model_alone(tmp_path: Path, kind: Kind) -> None:
    rows = [*_rows(reference_image=True, control_image=True)[:1], {**PLAIN, "prompt": "a square"}]
    denoiser, found = _opened(tmp_path, kind, rows)
    plain = [row for row in found if row.pixels.reference_image is None]
    drawn = _bytes(denoiser, [row for row in found if row not in plain], 4), _bytes(denoiser, plain, 4)
    (alone,) = Denoiser(models.pipe(kind)).draw(plain, 4, lambda: None)
    assert alone.rgb is not None
    assert drawn[1] == [alone.rgb.tobytes()]


def test_an_ip_adapter_draws_what_it_draws_in_diffusers(tmp_path: Path) -> None:
    import torch

    from imagekiln.steps.input_picture import opened

    denoiser, rows = _opened(tmp_path, "sd", _rows(reference_image=True)[:1])
    pipe = models.pipe("sd")
    folder = str(adapters.ip_adapter("sd"))
    pipe.load_ip_adapter(folder, subfolder="", weight_name="adapter.safetensors", image_encoder_folder="image_encoder")
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
def test_a_job_with_both_runs_is_verified_and_reproduced(tmp_path: Path, kind: Kind) -> None:
    rows = [*_rows(control_image=True)[:2], *_rows(reference_image=True)[2:], {**PLAIN, "prompt": "a square"}]
    done = run(job(write_prompts(tmp_path / "p.parquet", rows), str(tmp_path / "out"), model=_model(kind)))
    assert (done.summary.images, done.summary.ok) == (5, 5)
    assert verify(done.uri).ok == 5
    for row in tables.read(open_store(done.uri), names.manifest(0)).to_pylist()[::2]:
        assert reproduce(done.uri, row["image_id"], tmp_path / "again.png").equal == "bytes"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"controlnet": {"id": "there/is/none"}}, "model.controlnet: there/is/none is no folder."),
        ({"controlnet": {"id": "{pickles}"}}, "model.controlnet: .* has no \\*.safetensors. Pickles can run code"),
        ({"controlnet": {"id": "{unet}"}}, "model.controlnet: .* is a UNet2DConditionModel, not a ControlNetModel"),
        ({"ip_adapter": {"id": "{pickles}", "weight_name": "a.safetensors"}}, "has no a.safetensors. Pickles can"),
        ({"id": "{flux}", "controlnet": {"id": "{control}"}}, "model.controlnet: FluxPipeline takes none here"),
        (
            {"controlnet": {"id": "{wide}"}},
            "model.controlnet: .* reads texts of 64 channels, and .* has 32. Name another",
        ),
        ({"controlnet": {"id": "org/name"}}, "model.controlnet.revision is missing: pin org/name to a commit"),
    ],
)
def test_a_network_that_is_none_is_refused_at_planning(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    pickles = tmp_path / "pickles"
    pickles.mkdir()
    (pickles / "diffusion_pytorch_model.bin").write_bytes(b"\x80\x04")
    (pickles / "config.json").write_text('{"_class_name": "ControlNetModel"}')
    known = {"{pickles}": pickles, "{unet}": models.folder("sd") / "unet", "{flux}": models.folder("flux"),
             "{control}": adapters.controlnet("sd"), "{wide}": adapters.controlnet("sdxl")}  # fmt: skip

    def filled(value: object) -> object:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        return str(known[value]) if value in known else value

    model = {"id": str(models.folder("sd")), "dtype": "float32", **changes}
    with pytest.raises((BadInput, Missing), match=told):
        planned(tmp_path, str(tmp_path / "out"), _rows(control_image=True), model=filled(model))


@pytest.mark.parametrize(("whose", "sees"), [("sdxl", models.WIDE), ("sd", 2 * models.WIDE)])
def test_an_ip_adapter_of_another_model_or_image_encoder_is_the_job_s_mistake(
    tmp_path: Path, whose: Kind, sees: int
) -> None:
    shutil.copytree(adapters.ip_adapter(whose), tmp_path / "adapter")
    adapters.save_image_encoder(tmp_path / "adapter", sees)
    adapter = {"id": str(tmp_path / "adapter"), "weight_name": "adapter.safetensors"}
    model = {"id": str(models.folder("sd")), "dtype": "float32", "ip_adapter": adapter}
    there = planned(tmp_path, str(tmp_path / "out"), _rows(reference_image=True), model=model)
    with pytest.raises(BadInput, match=r"model\.ip_adapter: does not fit the model \(.*\). Name another"):
        loader(open_store(there.uri), there.plan)()


def test_a_network_that_was_changed_is_not_drawn_with(tmp_path: Path) -> None:
    copy = tmp_path / "control"
    shutil.copytree(adapters.controlnet("sd"), copy)
    model = {"id": str(models.folder("sd")), "dtype": "float32", "controlnet": {"id": str(copy)}}
    there = planned(tmp_path, str(tmp_path / "out"), _rows(control_image=True), model=model)
    shutil.copytree(adapters.controlnet("sdxl"), copy, dirs_exist_ok=True)
    with pytest.raises(BadInput, match="is not what the run was planned with"):
        loader(open_store(there.uri), there.plan)()
