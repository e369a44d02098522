"""The words of a safetensors file on itself: its kind and quantization.

Read from the names of its tensors, as trainers and other programs write them: kohya's scripts,
ComfyUI and LyCORIS.
"""

import re
from collections.abc import Collection, Mapping

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.models.component_files import (
    SCHEDULER_CONFIG,
    Config,
    quantized_error,
)

LOKR, LORA, WHOLE_MODEL = "a LoKr", "a LoRA", "a whole model"
# By a part of the name of any tensor, the more special first.
KINDS: Mapping[str, str] = {
    "a LoHa": r"\.hada_w\d",
    LOKR: r"\.lokr_",
    "a BOFT": r"\.boft_",
    "an OFT": r"\.oft_",
    "an IA3": r"\.ia3_l|\.on_input$",
    "a DoRA": r"\.dora_scale$",
    LORA: r"[._]lora_(?:down|up|mid|A|B)\b|[._]lora\d?\.(?:down|up)\.",
    "a ControlNet": r"^controlnet_|\binput_hint_block\b|^zero_convs\.",
    WHOLE_MODEL: r"^model\.diffusion_model\.|^(?:double|joint)_blocks\.",
    "an IP-Adapter": r"^image_proj\.|^ip_adapter",
    "an upscaler": r"\b(?:rdb|RDB)1\.|^RRDB_trunk\.|\bresidual_group\.",
    "an embedding": r"^emb_params$|^string_to_param|^clip_[lg]$",
    "a VAE": r"^(?:first_stage_model\.|vae\.)?decoder\.(?:conv_in|mid)\b",
    "a text encoder": r"^text_model\.|^encoder\.block\.",
}
# Scales and packed numbers of fp8, bitsandbytes, GPTQ, AWQ and SVDQuant.
QUANTIZED = re.compile(
    r"(?:^|\.)(?:scaled_fp8|scale_weight|scale_input|input_scale|weight_scale(?:_2|_inv)?"
    r"|comfy_quant|(?:nested_)?absmax|(?:nested_)?quant_map|quant_state\..*|SCB"
    r"|qweight|qzeros|wscales|wcscales|smooth_factor(?:_orig)?)$"
)
SCHEDULER_PREDICTIONS = ("epsilon", "flow_prediction", "sample", "trigflow", "v_prediction")


def file_kind(names: Collection[str]) -> str | None:
    """The kind of a file with tensors of these names, such as a LoHa; None if it is not known."""
    for kind, pattern in KINDS.items():
        if any(re.search(pattern, name) for name in names):
            return kind
    return None


def require_plain_weights(names: Collection[str], subject: str) -> None:
    """Raise BadInput if a file's tensors are quantized: their scales would be left out."""
    scale = min(filter(QUANTIZED.search, names), default=None)
    if scale is not None:
        raise quantized_error(subject, f"it has {cut_name(scale)}")


def require_whole_model(names: Collection[str], subject: str) -> None:
    """Raise BadInput if a file is not that of a whole model in plain weights."""
    require_plain_weights(names, subject)
    kind = file_kind(names)
    if kind not in (WHOLE_MODEL, None):
        raise BadInput(
            f"{subject}: is {kind}, not a model that draws. Choose a whole model; LoRAs are named "
            "in model.loras."
        )


def require_known_scheduler(config: Config, subject: str) -> None:
    """Raise BadInput if a scheduler's configuration has a prediction that no class knows."""
    prediction = str(config.get("prediction_type") or "epsilon")
    if prediction not in SCHEDULER_PREDICTIONS:
        raise BadInput(
            f"{subject}: {SCHEDULER_CONFIG}: prediction_type is {cut_name(prediction)}, not one of "
            f"{', '.join(SCHEDULER_PREDICTIONS)}. Correct it."
        )
