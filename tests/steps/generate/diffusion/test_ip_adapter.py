"""IP-Adapters of transformers: whole jobs, slots of a batch, and what is refused."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.local import run
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.image import ImageRow, image_rows
from imagekiln.steps.runs.keys import rejected_key
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
from tests import adapters, models
from tests.adapters import Transformer
from tests.drawing import bytes_of
from tests.faults import manifests
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
    "width": models.SIDE,
    "height": models.SIDE,
    "source_image": None,
    "mask_image": None,
    "reference_image": None,
}
PLAIN: dict[str, object] = {"prompt": "a square", **BARE}


def _model(kind: Transformer, folder: Path | None = None) -> dict[str, object]:
    adapter = {"id": str(folder or ADAPTERS[kind]()), "weight_name": FILE, "scale": 0.8}
    return {"id": str(models.folder(kind)), "dtype": "float32", "ip_adapter": adapter}


def _rows(*columns: str) -> list[dict[str, object]]:
    """Four rows with pictures in these columns, another picture for each row, but for masks."""
    return [
        {
            "prompt": prompt,
            **BARE,
            **{name: half() if name == "mask_image" else noise(place) for name in columns},
        }
        for place, prompt in enumerate(PROMPTS)
    ]


def _opened(
    folder: Path, kind: Transformer, rows: list[dict[str, object]], adapter: Path | None = None
) -> tuple[Denoiser, list[ImageRow]]:
    there = planned(folder, str(folder / "out"), rows, model=_model(kind, adapter))
    store = open_store(there.uri)
    return LazyDenoiser(store, there.plan)(), image_rows(read_shard_rows(store, there.plan, 0))


def _like(row: ImageRow, **changes: object) -> ImageRow:
    same = {
        name: getattr(row.parameters, name)
        for name in type(row.parameters).__slots__
        if name != "prompt"
    }
    return image_row(row.parameters.prompt, **{**same, **changes})


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "beside", [[], ["source_image"], ["source_image", "mask_image"]], ids="+".join
)
def test_an_image_has_the_same_bytes_in_every_slot_and_follows_its_own_reference(
    tmp_path: Path, kind: Transformer, beside: list[str]
) -> None:
    denoiser, rows = _opened(tmp_path, kind, _rows("reference_image", *beside))
    for width in (models.SIDE, 2 * models.SIDE):
        shaped = [_like(row, width=width) for row in rows]
        for size in (2, 4):
            whole = bytes_of(denoiser, shaped[:size], size)
            assert whole == bytes_of(denoiser, shaped[:size][::-1], size)[::-1]
            assert whole[1:2] == bytes_of(denoiser, shaped[1:2], size)
    other = _like(rows[0], reference_image=rows[3].parameters.reference_image)
    assert bytes_of(denoiser, [other], 4) != bytes_of(denoiser, rows[:1], 4)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_without_a_reference_is_drawn_as_by_the_model_alone(
    tmp_path: Path, kind: Transformer
) -> None:
    denoiser, found = _opened(tmp_path, kind, [*_rows("reference_image")[:1], PLAIN])
    plain = [row for row in found if row.parameters.reference_image is None]
    bytes_of(denoiser, [row for row in found if row not in plain], 4)
    assert bytes_of(denoiser, plain, 4) == bytes_of(Denoiser(models.pipe(kind)), plain, 4)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("kind", "guidance"), [("flux", 3.0), ("sd3", 3.0), ("sd3", 1.0)])
def test_an_ip_adapter_draws_what_it_draws_in_diffusers(
    tmp_path: Path, kind: Transformer, guidance: float
) -> None:
    denoiser, found = _opened(tmp_path, kind, _rows("reference_image")[:1])
    rows = [_like(found[0], guidance=guidance)]
    pipe, folder = models.pipe(kind), ADAPTERS[kind]()
    if kind == "flux":
        encoder = {
            "image_encoder_pretrained_model_name_or_path": folder / "image_encoder",
            "image_encoder_dtype": torch.float32,
        }
        pipe.load_ip_adapter(folder, weight_name=FILE, **encoder)
    else:
        pipe.image_encoder = transformers.SiglipVisionModel.from_pretrained(
            folder / "image_encoder"
        )
        pipe.feature_extractor = transformers.SiglipImageProcessor.from_pretrained(
            folder / "image_encoder"
        )
        pipe.load_ip_adapter(folder, weight_name=FILE)
    assert bytes_of(denoiser, rows, 1) == [
        adapters.drawn_by_diffusers(pipe, PROMPTS[0], rows[0], guidance=guidance)
    ]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_runs_is_verified_and_reproduced(tmp_path: Path, kind: Transformer) -> None:
    rows = [*_rows("reference_image")[:2], *_rows("reference_image", "source_image")[2:], PLAIN]
    model = {**_model(kind), "dtype": "bfloat16"}
    done = run(job(write_prompts(tmp_path / "p.parquet", rows), str(tmp_path / "out"), model=model))
    assert (done.summary.images, done.summary.ok) == (5, 5)
    assert verify(done.uri).ok == 5
    for row in manifests(done.uri)[::2]:
        assert reproduce(done.uri, row["image_id"], tmp_path / "again.png").equal == "bytes"


@pytest.mark.slow
@pytest.mark.filterwarnings(models.FLUX_WARNS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_controlnet_acts_beside_it_and_with_a_source_too_is_refused_by_row(
    tmp_path: Path, kind: Transformer
) -> None:
    both = _rows("reference_image", "control_image")
    rows = [
        *both[:3],
        *_rows("control_image")[3:],
        PLAIN,
        *_rows("control_image", "source_image")[:1],
    ]
    model = _model(kind) | {"controlnet": {"id": str(adapters.controlnet(kind))}}
    prompts = write_prompts(tmp_path / "p.parquet", rows)
    done = run(job(prompts, str(tmp_path / "out"), model=model, limits={"rejected_share": 0.5}))
    assert (done.summary.images, done.summary.ok) == (5, 5)
    store = open_store(done.uri)
    (refused,) = read_table(store, rejected_key(load_plan(store).rejected)).to_pylist()
    assert refused["reason"].startswith("cannot be combined with a source_image")
    made = manifests(done.uri)
    for row in made[::3]:
        assert reproduce(done.uri, row["image_id"], tmp_path / "again.png").equal == "bytes"


Tensors = dict[str, torch.Tensor]


def _copy(target: Path, kind: Transformer, change: Callable[[Tensors], Tensors]) -> Path:
    shutil.copytree(ADAPTERS[kind](), target)
    tensors = change(safetensors.torch.load_file(target / FILE))
    (target / FILE).unlink()
    safetensors.torch.save_file(tensors, target / FILE)
    return target


def _without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: each for key, each in tensors.items() if name not in key}


@pytest.mark.parametrize(
    ("kind", "folder", "told"),
    [
        (
            "flux",
            adapters.sd3_ip_adapter,
            "type siglip_vision_model, but the model needs a CLIPVisionModelWith",
        ),
        (
            "sd3",
            adapters.flux_ip_adapter,
            "type clip_vision_model, but the model needs a SiglipVisionModel",
        ),
        (
            "flux",
            partial(adapters.ip_adapter, "sd"),
            "is for 4 blocks of a transformer, but the model has 1",
        ),
    ],
)
def test_an_adapter_of_another_family_is_refused_at_planning(
    tmp_path: Path, kind: Transformer, folder: Callable[[], Path], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        planned(
            tmp_path, str(tmp_path / "out"), _rows("reference_image"), model=_model(kind, folder())
        )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("kind", "lacks", "told"),
    [
        ("flux", "v_proj.bias", "it has no '0.to_v_ip.bias'"),
        (
            "flux",
            "norm.weight",
            "its files lack encoder_hid_proj.image_projection_layers.0.norm.weight",
        ),
        ("sd3", "to_v_ip", "its files lack transformer_blocks.0.attn.processor.to_v_ip.weight"),
    ],
)
def test_an_adapter_that_lacks_a_tensor_ends_the_shard(
    tmp_path: Path, kind: Transformer, lacks: str, told: str
) -> None:
    folder = _copy(tmp_path / "adapter", kind, _without(lacks))
    with pytest.raises(
        BadInput, match=rf"model\.ip_adapter: does not fit the model \({told}\)\. Choose another"
    ):
        _opened(tmp_path, kind, _rows("reference_image"), folder)


def test_an_adapter_that_reads_what_another_image_encoder_sees_ends_the_shard(
    tmp_path: Path,
) -> None:
    folder = _copy(tmp_path / "adapter", "flux", dict)
    adapters.save_image_encoder(folder, 2 * models.WIDE)
    with pytest.raises(
        BadInput, match=r"model\.ip_adapter: does not fit the model \(.*\)\. Choose another"
    ):
        _opened(tmp_path, "flux", _rows("reference_image"), folder)
