"""The words of a safetensors file on itself: its kind, quantization, and its network's prediction.

Read from the names of its tensors and the texts in its header, as trainers and other programs write
them: https://github.com/Stability-AI/ModelSpec, kohya's scripts, ComfyUI and LyCORIS.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.models.component_files import (
    SCHEDULER_CONFIG,
    Config,
    quantized_error,
    read_json,
)
from imagekiln.steps.models.weights import WeightsHeader

# What changes the layers of another model, the more special first.
ADAPTER_KINDS: Mapping[str, str] = {
    "a LoHa": r"\.hada_w\d",
    "a LoKr": r"\.lokr_",
    "a BOFT": r"\.boft_",
    "an OFT": r"\.oft_",
    "an IA3": r"\.ia3_l|\.on_input$",
    "a GLoRA": r"\.[ab][12]\.weight$",
    "a DoRA": r"\.dora_scale$",
    "a LoRA": r"[._]lora_(?:down|up|mid|A|B)\b|[._]lora\d?\.(?:down|up)\.",
}
# By a name of a tensor that no whole model has.
OTHER_KINDS: Mapping[str, str] = {
    "a ControlNet": r"^control_model\.|^controlnet_|\binput_hint_block\b|^zero_convs\.",
    "an IP-Adapter": r"^image_proj\.|^ip_adapter",
    "an upscaler": r"\brdb1\.|\.RDB1\.|^RRDB_trunk\.|\bresidual_group\.",
    "an embedding": r"^emb_params$|^string_to_param|^clip_[lg]$",
}
# By names of which one is that of each tensor.
PART_KINDS: Mapping[str, str] = {
    "a VAE": r"(?:first_stage_model\.|vae\.)?(?:encoder|decoder|quant_conv|post_quant_conv|loss)\.",
    "a text encoder": r"text_model\.|text_projection|logit_scale|shared\.|encoder\.block\.",
}
WHOLE_MODEL = re.compile(r"^model\.diffusion_model\.|^first_stage_model\.|^double_blocks\.")
# Scales and packed numbers of fp8, bitsandbytes, GPTQ, AWQ and SVDQuant.
QUANTIZED = re.compile(
    r"(?:^|\.)(?:scaled_fp8|scale_weight|scale_input|input_scale|weight_scale(?:_2|_inv)?"
    r"|comfy_quant|(?:nested_)?absmax|(?:nested_)?quant_map|quant_state\..*|SCB"
    r"|qweight|qzeros|wscales|wcscales|smooth_factor(?:_orig)?)$"
)
EDM = re.compile(r"(?:^|\.)edm_(?:vpred|mean|std)")
ARCHITECTURE = "modelspec.architecture"
# The start of an architecture, and of the pipelines that draw with it, the longer ones first.
PIPELINES: Mapping[str, str] = {
    "stable-diffusion-xl": "StableDiffusionXL",
    "stable-diffusion-v3": "StableDiffusion3",
    "stable-diffusion-3": "StableDiffusion3",
    "stable-diffusion-v1": "StableDiffusion",
    "stable-diffusion-v2": "StableDiffusion",
    "flux-2": "Flux2",
    "flux": "Flux",
    "chroma": "Chroma",
}
PREDICTION_KEYS = ("modelspec.prediction_type", "modelspec.predict_key")
PREDICTIONS: Mapping[str, str] = {
    **dict.fromkeys(("epsilon", "eps", "noise"), "epsilon"),
    **dict.fromkeys(("v", "v_prediction", "v_pred", "velocity"), "v_prediction"),
    **dict.fromkeys(("sample", "x0", "original"), "sample"),
    **dict.fromkeys(("flow", "flow_prediction", "flow_matching", "rf"), "flow_prediction"),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction that a file states of its network, and the words that state it.

    With `zero_snr` the noisiest step is pure noise. None and False: it does not say.
    """

    kind: str | None = None
    zero_snr: bool = False
    source: str = ""

    def changes(self, scheduler: Config) -> Config:
        """The changes of a scheduler's configuration that make it draw as the file says.

        None of one for flow matching, of which trainers write epsilon, their default.
        """
        if _is_flow(scheduler):
            return {}
        kind: Config = {} if self.kind is None else {"prediction_type": self.kind}
        return {**kind, "rescale_betas_zero_snr": True} if self.zero_snr else kind


def adapter_kind(names: Collection[str]) -> str | None:
    """The kind of a file that changes the layers of a model, such as a LoHa; None if it is none."""
    return _first_kind(ADAPTER_KINDS, names)


def part_kind(names: Collection[str]) -> str | None:
    """The kind of a file that is no whole model; None if it may be one."""
    if any(WHOLE_MODEL.match(name) for name in names if not name.startswith("first_stage_model.")):
        return None
    for kind, pattern in PART_KINDS.items():
        if names and all(re.match(pattern, name) for name in names):
            return kind
    return _first_kind(OTHER_KINDS, names)


def is_whole_model(names: Collection[str]) -> bool:
    """Whether a file holds a denoiser under the names of the original releases."""
    return any(WHOLE_MODEL.match(name) for name in names)


def require_plain_weights(names: Collection[str], subject: str) -> None:
    """Raise BadInput if a file's tensors are quantized: their scales would be left out."""
    scale = min(filter(QUANTIZED.search, names), default=None)
    if scale is not None:
        raise quantized_error(subject, f"it has {cut_name(scale)}")


def require_whole_model(header: WeightsHeader, subject: str) -> None:
    """Raise BadInput if a file is not that of a whole model in plain weights."""
    require_plain_weights(header.names, subject)
    architecture, _, adapter = header.metadata.get(ARCHITECTURE, "").partition("/")
    stated = f"a {cut_name(adapter)} for {cut_name(architecture)}" if adapter else None
    if kind := adapter_kind(header.names):
        raise BadInput(
            f"{subject}: is {kind}, which changes a model. Name it in model.loras, and set "
            "model.id to the model that it was made for."
        )
    if kind := part_kind(header.names) or stated:
        raise BadInput(f"{subject}: is {kind}, not a model that draws. Choose a whole model.")


def require_same_family(header: WeightsHeader, subject: str, pipeline: str) -> None:
    """Raise BadInput if a file says that it is of another family than its configuration."""
    architecture = header.metadata.get(ARCHITECTURE, "").lower()
    stated = next((name for start, name in PIPELINES.items() if architecture.startswith(start)), "")
    longest_first = sorted({*PIPELINES.values()}, key=len, reverse=True)
    actual = next((name for name in longest_first if pipeline.startswith(name)), "")
    if stated and stated != actual:
        raise BadInput(
            f"{subject}: says that it is {cut_name(architecture)} ({ARCHITECTURE}), and "
            f"model.config is a {pipeline}. Set model.config to a pipeline of its family."
        )


def read_prediction(header: WeightsHeader, subject: str) -> Prediction:
    """Return the prediction that a file states. Raises BadInput if it is not known."""
    metadata = header.metadata
    last = {name.rpartition(".")[2]: name for name in header.names}
    kind, source = None, ""
    for key in PREDICTION_KEYS:
        if stated := metadata.get(key):
            kind, source = PREDICTIONS.get(stated.lower().replace("-", "_")), f"{key}: {stated}"
            if kind is None:
                raise BadInput(
                    f"{subject}: says {cut_name(source)}, which Imagekiln does not know. Correct "
                    "the file's metadata, or choose another model."
                )
    if metadata.get("ss_v_parameterization", "").lower() == "true":
        kind, source = "v_prediction", "ss_v_parameterization"
    if "v_pred" in last:
        kind, source = "v_prediction", f"its tensor {last['v_pred']}"
    zero_snr = "ztsnr" in last or metadata.get("ss_zero_terminal_snr", "").lower() == "true"
    return Prediction(kind, zero_snr, source)


def require_fitting_scheduler(header: WeightsHeader, subject: str, configuration: Path) -> None:
    """Raise BadInput if the scheduler of a configuration cannot draw as a file says."""
    prediction = read_prediction(header, subject)
    path = configuration / SCHEDULER_CONFIG
    config = read_json(path, subject) if path.is_file() else {}
    edm = min((name for name in header.names if EDM.search(name)), default=None)
    own = "flow_prediction" if _is_flow(config) else config.get("prediction_type", "epsilon")
    says = f"predicts {prediction.kind} ({cut_name(prediction.source)})"
    if edm is not None:
        says = f"is for the noise levels of EDM ({cut_name(edm)})"
        fits = str(config.get("_class_name")).startswith("EDM")
    elif prediction.kind == "epsilon":
        fits = own != "v_prediction"
    else:
        fits = prediction.kind in (None, own) or "flow_prediction" not in (own, prediction.kind)
    if not fits:
        raise BadInput(
            f"{subject}: {says}, and {SCHEDULER_CONFIG} of model.config is a "
            f"{cut_name(str(config.get('_class_name')))} of prediction_type {cut_name(str(own))}. "
            "Set model.config to the pipeline that it was made from."
        )


def _is_flow(scheduler: Config) -> bool:
    class_name = str(scheduler.get("_class_name"))
    return class_name.startswith("FlowM") or scheduler.get("prediction_type") == "flow_prediction"


def _first_kind(kinds: Mapping[str, str], names: Collection[str]) -> str | None:
    for kind, pattern in kinds.items():
        if any(re.search(pattern, name) for name in names):
            return kind
    return None


def require_known_scheduler(config: Config, index: Config, subject: str) -> None:
    """Raise BadInput if a scheduler's configuration has values that its class does not read."""
    known = sorted({*PREDICTIONS.values(), "trigflow"})
    prediction = str(config.get("prediction_type") or "epsilon")
    reference = index.get("scheduler")
    loaded = str(reference[1]) if isinstance(reference, list) and len(reference) == 2 else ""
    written = str(config.get("_class_name") or loaded)
    problem = None
    if prediction not in known:
        problem = f"prediction_type is {cut_name(prediction)}, not one of {', '.join(known)}"
    elif loaded.startswith("FlowM") != written.startswith("FlowM"):
        problem = f"it is of a {cut_name(written)}, and model_index.json loads a {cut_name(loaded)}"
    if problem is not None:
        raise BadInput(f"{subject}: {SCHEDULER_CONFIG}: {problem}. Correct it.")
