"""The files of an IP-Adapter beside the model that they are for: looked at before anything of them is loaded."""

import re
from collections.abc import Mapping
from pathlib import Path

from imagekiln.steps import tensor_names
from imagekiln.steps.adapters import IpAdapterSettings
from imagekiln.steps.errors import BadInput
from imagekiln.steps.model import read_json
from imagekiln.steps.siblings import ImageEncoderClass
from imagekiln.steps.store_errors import translate_errors

# As transformers' configurations name them: alone, and as a half of what reads texts too.
ENCODER_MODEL_TYPES: Mapping[ImageEncoderClass, tuple[str, str]] = {
    "CLIPVisionModelWithProjection": ("clip_vision_model", "clip"),
    "SiglipVisionModel": ("siglip_vision_model", "siglip"),
}
IP_ADAPTER_BLOCK = re.compile(r"(?:ip_adapter|double_blocks)\.(\d{1,4})\.")


def require_ip_adapter_files(
    folder: Path, wanted: IpAdapterSettings, encoder: ImageEncoderClass, denoiser: Mapping[str, object]
) -> None:
    """Raise BadInput where the files in `folder` are not for this image encoder and a denoiser so configured.

    Raises Missing, TryAgain too.
    """
    kind = read_json(folder / wanted.image_encoder / "config.json", wanted.setting_path).get("model_type")
    if kind not in ENCODER_MODEL_TYPES[encoder]:
        raise BadInput(
            f"{wanted.setting_path}: {wanted.id} has an image encoder of the kind {kind}, and the model reads what a "
            f"{encoder} makes of pictures. Name another."
        )
    found, blocks = (
        _ip_adapter_blocks(folder / wanted.weight_patterns[0], wanted.setting_path),
        _reference_block_count(denoiser),
    )
    if blocks is not None and found != {*range(blocks)}:  # diffusers would leave out what is for more
        raise BadInput(
            f"{wanted.setting_path}: {wanted.weight_name} is for {len(found)} blocks of a transformer, and the model has "
            f"{blocks}. Name another."
        )


def _ip_adapter_blocks(file: Path, setting: str) -> set[int]:
    """The numbers of the blocks that an adapter is for."""
    with translate_errors(str(file)):
        found = tensor_names.read(file, setting)
    return {int(each[1]) for name in found if (each := IP_ADAPTER_BLOCK.match(name))}


def _reference_block_count(denoiser: Mapping[str, object]) -> int | None:
    """How many blocks of a transformer read a reference; None for UNets, whose blocks are numbered otherwise."""
    layers, dual = denoiser.get("num_layers"), denoiser.get("dual_attention_layers")
    more = len(dual) if isinstance(dual, list | tuple) else 0  # SD 3.5 medium's that attend twice
    return layers + more if isinstance(layers, int) else None
