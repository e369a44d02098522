"""LoRAs that all rows share: fused when the model is loaded, with the pictures of unfused ones."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.adapters import LoadedAdapters
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.diffusion.image_prefetch import ImagePrefetcher
from imagekiln.steps.generate.diffusion.loras import LoraLayers, fuse_loras
from imagekiln.steps.generate.diffusion.pipeline import load_pipeline
from imagekiln.steps.generate.start import generate
from imagekiln.steps.job.adapters import LoraSettings
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.local import run
from imagekiln.steps.maintain.diff import SettingDifference, diff
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.models.loras import load_lora_facts
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests import eighths, families, loras, runs
from tests.drawing import pixels_of
from tests.faults import image, manifests
from tests.models import DIFFUSERS_WARNS, SIDE, Untyped
from tests.pictures import noise

pytestmark = pytest.mark.filterwarnings(DIFFUSERS_WARNS)

BOTH = "detail:-0.5,style:0.8"
WITH_TEXT = {"sd", "sdxl", "flux"}  # whose text encoders take a LoRA
Files = dict[str, LoraSettings]


def _files(kind: str) -> Files:
    text = kind in WITH_TEXT
    folders = {"style": loras.folder(kind, 1, text=text), "detail": loras.folder(kind, 2)}
    return {name: LoraSettings(id=str(folder)) for name, folder in folders.items()}


def _rows(kind: str, wanted: str) -> list[ImageRow]:
    side = families.SIDES.get(kind, SIDE)
    return [
        runs.image_row("a red circle", place, loras=wanted, width=side, height=side)
        for place in range(2)
    ]


def _unfused(pipe: Untyped, files: Files, rows: Sequence[ImageRow]) -> npt.NDArray[np.int16]:
    facts = load_lora_facts(ModelSettings(id="here", loras=files))
    return np.array(pixels_of(Denoiser(pipe, loras=LoraLayers(pipe, files, facts)), rows, 2), "i2")


def _fused(pipe: Untyped, files: Files, rows: Sequence[ImageRow]) -> npt.NDArray[np.int16]:
    facts = load_lora_facts(ModelSettings(id="here", loras=files))
    fuse_loras(pipe, files, facts, rows[0].parameters.loras or "")
    return np.array(pixels_of(Denoiser(pipe), rows, 2), "i2")


def _classes(pipe: Untyped) -> list[tuple[str, type]]:
    networks = [each for each in pipe.components.values() if isinstance(each, torch.nn.Module)]
    return [
        (name, type(module)) for network in networks for name, module in network.named_modules()
    ]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("wanted", ["style:0.8", BOTH])
@pytest.mark.parametrize("kind", ["sd", "sdxl", "flux", "qwen-image"])
def test_images_are_those_of_the_same_loras_by_row(kind: str, wanted: str) -> None:
    rows = _rows(kind, wanted)
    plain = np.array(pixels_of(Denoiser(families.pipe(kind)), rows, 2), "i2")
    fused = _fused(families.pipe(kind), _files(kind), rows)
    assert np.abs(fused - _unfused(families.pipe(kind), _files(kind), rows)).max() <= 1
    assert not np.array_equal(fused, plain)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["sdxl", "flux"])
def test_layers_and_precision_of_the_model_stay(kind: str, dtype: torch.dtype) -> None:
    pipe, files = families.pipe(kind, dtype), _files(kind)
    before = _classes(pipe)
    fuse_loras(pipe, files, load_lora_facts(ModelSettings(id="here", loras=files)), BOTH)
    assert _classes(pipe) == before
    networks = (pipe.components[name] for name in ("text_encoder", "vae"))
    assert {each.dtype for network in networks for each in network.parameters()} == {dtype}


def test_a_sum_is_rounded_once_however_many_loras_it_has() -> None:
    files, name = _files("sd"), "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    facts = load_lora_facts(ModelSettings(id="here", loras=files))
    by_row = families.pipe("sd", torch.bfloat16)
    LoraLayers(by_row, files, facts).activate(BOTH, texts=False)
    layer = by_row.unet.get_submodule(name)
    whole = layer.base_layer.weight.float()
    for adapter in layer.active_adapters:
        up, down = layer.lora_B[adapter].weight, layer.lora_A[adapter].weight
        whole = whole + up.float() @ down.float() * layer.scaling[adapter]
    fused = families.pipe("sd", torch.bfloat16)
    fuse_loras(fused, files, facts, BOTH)
    assert torch.equal(fused.unet.get_submodule(name).weight, whole.bfloat16())


def _lokr(pipe: Untyped) -> dict[str, torch.Tensor]:
    sides = pipe.transformer.layers[0].attention.to_q.weight.shape
    random = torch.Generator().manual_seed(3)
    name = "diffusion_model.layers.0.attention.to_q"
    return {
        f"{name}.lokr_w1": torch.randn(2, 2, generator=random),
        f"{name}.lokr_w2": torch.randn(sides[0] // 2, sides[1] // 2, generator=random),
    }


def _dora(pipe: Untyped) -> dict[str, torch.Tensor]:
    tensors = load_file(loras.folder("sd", 1) / loras.FILE)
    for name in [name for name in tensors if name.endswith(".lora_B.weight")]:
        base = name.removesuffix(".lora_B.weight")
        layer = pipe.unet.get_submodule(base.removeprefix("unet."))
        tensors[f"{base}.lora_magnitude_vector"] = 1.5 * layer.weight.norm(dim=1).detach()
    return tensors


def _convolution(pipe: Untyped) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    name = "mid_block.resnets.0.conv1"
    wide, deep, *sides = pipe.unet.get_submodule(name).weight.shape
    return {
        f"unet.{name}.lora_A.weight": torch.randn(2, deep, *sides, generator=random),
        f"unet.{name}.lora_B.weight": torch.randn(wide, 2, 1, 1, generator=random),
    }


@pytest.mark.parametrize(
    ("kind", "make"), [("z-image", _lokr), ("sd", _dora), ("sd", _convolution)]
)
def test_other_kinds_of_adapters_are_fused_too(kind: str, make: Untyped, tmp_path: Path) -> None:
    file, rows = tmp_path / "style.safetensors", _rows(kind, "style:0.7")
    save_file(make(families.pipe(kind)), file)
    files = {"style": LoraSettings(id=str(file))}
    fused = _fused(families.pipe(kind), files, rows)
    assert np.abs(fused - _unfused(families.pipe(kind), files, rows)).max() <= 1
    assert not np.array_equal(fused, pixels_of(Denoiser(families.pipe(kind)), rows, 2))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    file, rows = tmp_path / "style.safetensors", _rows("sd", "style:1")
    tensors = load_file(loras.folder("sd", 1) / loras.FILE)
    save_file({name: tensor * 1e30 for name, tensor in tensors.items()}, file)
    told = r"^defaults\.loras is style:1, which cannot be added .* \(a sum is not finite\)\. Choose"
    with pytest.raises(BadInput, match=told):
        _fused(families.pipe("sd"), {"style": LoraSettings(id=str(file))}, rows)


def test_a_picture_is_redrawn_with_what_was_fused(tmp_path: Path) -> None:
    store, content = open_store(str(tmp_path)), noise(1)
    digest = hashlib.sha256(content).hexdigest()
    store.create(input_image_key(digest), content)
    row = runs.image_row(loras=BOTH, steps=4, strength=0.5, source_image=digest)
    files = _files("sd")
    facts = load_lora_facts(ModelSettings(id="here", loras=files))
    adapters = LoadedAdapters(ImagePrefetcher(store))
    fused, by_row = families.pipe("sd"), families.pipe("sd")
    fuse_loras(fused, files, facts, BOTH)
    layers = LoraLayers(by_row, files, facts)
    (drawn,) = pixels_of(Denoiser(fused, adapters=adapters), [row], 1)
    (same,) = pixels_of(Denoiser(by_row, loras=layers, adapters=adapters), [row], 1)
    (plain,) = pixels_of(Denoiser(families.pipe("sd"), adapters=adapters), [row], 1)
    assert np.abs(drawn.astype(int) - same).max() <= 1
    assert not np.array_equal(drawn, plain)


def _settings(dtype: str = "float32") -> dict[str, object]:
    files = {name: {"id": lora.id} for name, lora in _files("sd").items()}
    defaults = {"steps": 2, "guidance": 3.0, "loras": BOTH}
    model = {"id": str(families.folder("sd")), "dtype": dtype, "loras": files}
    return {"model": model, "defaults": defaults}


def _planned(folder: Path, rows: runs.Rows = runs.PROMPTS[:2], **changes: object) -> PlanResult:
    return runs.planned(folder, str(folder / "out"), rows, **{**_settings(), **changes})


def test_images_of_a_job_show_what_all_share_as_they_show_what_rows_ask_for(
    tmp_path: Path,
) -> None:
    by_row = [{**row, "loras": BOTH} for row in runs.PROMPTS[:2]]
    shown = []
    uris = []
    for name, rows in (("fused", runs.PROMPTS[:2]), ("by-row", by_row)):
        prompts = runs.write_prompts(tmp_path / f"{name}.parquet", rows)
        out = str(tmp_path / name)
        done = run(runs.job(prompts, out, **_settings()))
        store, rows_made = open_store(done.uri), manifests(done.uri)
        pictures = [image(store, row) for row in rows_made]
        tags = b"<lora:detail:-0.5> <lora:style:0.8>"
        told = {picture for picture in pictures if tags in picture and b"Lora hashes" in picture}
        shown.append(([row["loras"] for row in rows_made], len(told)))
        uris.append(done.uri)
    assert shown == [([BOTH, BOTH], 2)] * 2
    compared = diff(uris[0], uris[1], str(tmp_path / "diff"))
    assert SettingDifference("fused LoRAs", BOTH, "") in compared.settings


def test_part_that_a_killed_shard_lacks_is_made_to_the_byte(tmp_path: Path) -> None:
    planned = _planned(tmp_path, runs.PROMPTS[:8])
    store = open_store(planned.uri)
    first, second = (part.key for part in read_shard(store, planned.plan, 0))
    generate(planned.uri, 0)
    made = store.read(first), store.read(second)
    (Path(planned.uri) / second).unlink()
    generate(planned.uri, 0)
    assert (store.read(first), store.read(second)) == made


def test_images_are_retried_and_reproduced_to_the_byte(tmp_path: Path) -> None:
    planned = _planned(tmp_path, limits={"failed_share": 1.0})
    runs.fill(planned, {place: runs.not_ok(place) for place in range(2)})
    aggregate(planned.uri)
    assert retry(planned.uri).summary.ok == 2
    for row in manifests(planned.uri):
        assert reproduce(planned.uri, row["image_id"], tmp_path / "again.png").equal == "bytes"


def test_a_job_in_fp8_whose_loras_nobody_asks_for_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eighths.emulate(monkeypatch)
    changes = _settings("bfloat16") | {"defaults": {"steps": 2, "guidance": 3.0}}
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", runs.PROMPTS[:2])
    job = runs.job(prompts, str(tmp_path / "out"), speed={"quantization": "fp8"}, **changes)
    assert run(job).summary.ok == 2


def test_what_was_fused_is_quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eighths.emulate(monkeypatch)
    changes: dict[str, object] = {**_settings("bfloat16")}
    layers = []
    for name in ("none", "fp8"):
        changes["speed"] = {"quantization": name}
        planned = runs.planned(tmp_path / name, str(tmp_path / name), runs.PROMPTS[:2], **changes)
        unet = load_pipeline(planned.plan).unet
        layers.append(unet.mid_block.attentions[0].transformer_blocks[0].attn1.to_q)
    assert [type(layer) for layer in layers] == [torch.nn.Linear] * 2
    fused, in_fp8 = (layer.weight.detach() for layer in layers)
    assert torch.allclose(in_fp8.dequantize().float(), fused.float(), rtol=0.1, atol=0.01)
