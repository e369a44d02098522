"""IP-Adapters of transformers: whole jobs, slots of a batch, and what is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import transformers

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.runs.image import ImageRow, image_rows
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.storage import open_store
from tests import adapters, models
from tests.adapters import Transformer
from tests.drawing import bytes_of
from tests.pictures import half, noise
from tests.runs import image_row, planned

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

FILE = "adapter.safetensors"
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
    "reference_images": None,
}


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
@pytest.mark.parametrize(("kind", "guidance"), [("flux", 3.0), ("sd3", 3.0), ("sd3", 1.0)])
def test_an_ip_adapter_draws_what_it_draws_in_diffusers(
    tmp_path: Path, kind: Transformer, guidance: float
) -> None:
    denoiser, found = _opened(tmp_path, kind, _rows("reference_images")[:1])
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
    ],
)
def test_an_adapter_of_another_family_is_refused_at_planning(
    tmp_path: Path, kind: Transformer, folder: Callable[[], Path], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        planned(
            tmp_path, str(tmp_path / "out"), _rows("reference_images"), model=_model(kind, folder())
        )
