"""Load networks from safetensors strictly: a missing or unused tensor is an error.

The libraries initialize missing tensors at random and drop unknown ones, which changes the images.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path

import diffusers
import torch
import transformers
from safetensors import safe_open

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.generate.diffusion.patches import (
    Untyped,
    checked_conversion,
    count_numbers,
    keep_gguf_in_linear_layers,
)
from imagekiln.steps.models.component_files import (
    CONFIG_FILE,
    Config,
    class_references,
    denoiser_component,
    read_config,
    read_model_index,
)
from imagekiln.steps.models.facts import loaded_weights
from imagekiln.steps.models.quantization import (
    GGUF,
    QUANTIZERS,
    Quantizer,
    quantization_method,
)
from imagekiln.steps.models.weights import read_header, tensor_names
from imagekiln.steps.storage.failures import error_reason

Starts = str | tuple[str, ...]
MAX_LISTED = 3
# Buffers that libraries save but compute themselves, copies from training, and the projection of a
# CLIP that is read before it. A network that needs the projection reports it as missing.
HARMLESS = re.compile(
    r"(?:^|\.)(?:position_ids|num_batches_tracked|logit_scale|logit_bias|inv_freq|masked_bias"
    r"|relative_position_index|relative_coords_table|attn_mask|text_projection(?:\.weight)?"
    r"|v_pred|ztsnr)$"
    r"|(?:^|\.)(?:model_ema|ema|ema_model)\.|^first_stage_model\.loss\."
    # In files of Lumina 2, Z-Image and Sana, whose networks do not use them.
    r"|^(?:model\.diffusion_model\.)?(?:norm_final\.weight|pos_embed)$"
)
# Heads, and the other half of vision-language models, which a class does not load.
OTHER_PARTS = {
    *("text_model", "vision_model", "visual_projection", "decoder", "lm_head", "pooler", "score"),
    *("vision_tower", "visual", "audio_tower", "multi_modal_projector", "mtp"),
    *("classifier", "cls", "head"),
}
# Prefixes of tensor names, by prefixes of class names. Files contain no other networks.
STARTS = {
    "CLIPText": ("cond_stage_model.", "conditioner.", "text_encoders.clip"),
    "T5": ("text_encoders.t5xxl.",),
    "Autoencoder": ("first_stage_model.", "vae."),
}
TORCHAO_PART = re.compile(r"\._weight_\w+$")  # of a quantized weight
ABSENT = [None, None]  # a component that a pipeline omits
DENOISER = "model.diffusion_model."  # a file with only a transformer may lack the prefix


def load_network(network_class: Untyped, folder: Path, **options: object) -> Untyped:
    """Load a network from a folder, also a quantized one.

    Raises ValueError if a tensor is missing or unused, BadInput if the network's quantizer is not
    installed or does not work here.
    """
    _prepare_quantizer(network_class, folder)
    network, info = network_class.from_pretrained(
        folder, use_safetensors=True, local_files_only=True, output_loading_info=True, **options
    )
    if getattr(network, "is_loaded_in_4bit", False):  # which lands on the GPU at once
        network = network.to("cpu")
    require_present(info["missing_keys"])
    require_loaded(network)
    parts = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    absent = OTHER_PARTS - parts
    require_placed(
        name
        for name in info["unexpected_keys"]
        if name.removeprefix("model.").partition(".")[0] not in absent
    )
    return network


def _prepare_quantizer(network_class: Untyped, folder: Path) -> None:
    method = quantization_method(read_config(folder, CONFIG_FILE))
    quantizer = QUANTIZERS.get(method or "")
    if quantizer is None:  # others are refused before, or left to the library
        return
    _import_quantizer(folder.name, quantizer)
    is_of_diffusers = issubclass(network_class, diffusers.ModelMixin)
    if quantizer.needs_gpu and is_of_diffusers and not torch.cuda.is_available():
        raise BadInput(
            f"{folder.name}: is quantized by {method}, which needs a GPU for this network. Run it "
            "on a GPU, or choose the model before quantization."
        )
    for file in folder.glob("*.safetensors"):
        # diffusers does not report what torchao's metadata omits.
        names, metadata = read_header(file, str(file))
        if listed := metadata.get("tensor_names"):
            plain_names = {TORCHAO_PART.sub(".weight", name) for name in names}
            require_placed(plain_names.difference(json.loads(listed)))


def _import_quantizer(subject: str, quantizer: Quantizer) -> None:
    """Import a quantizer's package, since some register themselves with transformers.

    Raises BadInput if it cannot be imported.
    """
    try:
        import_module(quantizer.package)
    except ImportError as error:
        raise BadInput(
            f"{subject}: is quantized, and its package {quantizer.package} does not load "
            f"({error_reason(error)}). Type: pip install {quantizer.install}."
        ) from error


def require_present(missing: Collection[str]) -> None:
    """Raise ValueError if the list of missing tensors is not empty."""
    if missing:
        raise ValueError(f"its files lack {list_names([*missing])}")


def require_placed(unexpected: Iterable[str]) -> None:
    """Raise ValueError if there are unused tensors that are not known to be harmless."""
    if names := [name for name in unexpected if HARMLESS.search(name) is None]:
        raise ValueError(f"it has no place for {list_names(names)} of its files")


def require_loaded(network: torch.nn.Module) -> None:
    """Raise ValueError if a network has parameters that were not loaded from a file."""
    require_present([name for name, each in network.named_parameters() if each.is_meta])


def require_applied(file: Path, parts: Iterable[object], start: Starts = "") -> None:
    """Raise ValueError if a file has more numbers than the parts that were loaded from it.

    This is for loaders that do not report unused tensors.
    """
    loaded: list[torch.Tensor] = []
    for part in parts:
        if isinstance(part, torch.nn.Module):
            loaded += part.state_dict().values()
    with safe_open(file, framework="pt") as tensors:
        names = [name for name in tensors.keys() if name.startswith(start)]  # noqa: SIM118
        counts = {}
        for name in names:
            part = tensors.get_slice(name)
            shape = part.get_shape()
            counts[name] = math.prod(shape)
        _require_counted(counts, tensors.get_tensor, loaded)


def _require_counted(
    counts: Mapping[str, int],
    read: Callable[[str], torch.Tensor],
    loaded: Collection[torch.Tensor],
) -> None:
    """Raise ValueError if a file's tensors, with these counts of numbers, exceed the loaded."""
    harmless = list(filter(HARMLESS.search, counts))
    unused = lost_names(harmless, read, loaded)
    names = [name for name in counts if name not in unused]
    numbers = sum(counts[name] for name in names)
    held = sum(map(count_numbers, loaded))
    if numbers > held:
        lost = lost_names(names, read, loaded)
        require_placed(lost or names)


def lost_names(
    names: Iterable[str],
    read: Callable[[str], torch.Tensor],
    loaded: Collection[torch.Tensor],
) -> list[str]:
    """List tensors of a file whose numbers are in none of the loaded tensors."""
    flat = [each.flatten() for each in loaded]  # in halves too, since loaders swap them
    known = {_beginning(part) for each in flat for part in (each, *each.chunk(2))}
    dtypes = {each.dtype for each in loaded}
    return [
        name
        for name in names
        if known.isdisjoint(_beginning(read(name).to(dtype)) for dtype in dtypes)
    ]


def list_names(names: list[str]) -> str:
    """Format the first of some names of tensors or layers, and the number of the others."""
    first = sorted(names)[:MAX_LISTED]
    listed = ", ".join(map(cut_name, first))
    more = len(names) - MAX_LISTED
    return f"{listed} and {more} more" if more > 0 else listed


def _beginning(tensor: torch.Tensor) -> tuple[float, ...]:
    """Fingerprint a tensor: its first numbers, which splitting keeps, and its size if all equal."""
    first = tensor.flatten()[:8].tolist()
    return (*first, tensor.numel() if len({*first}) == 1 else 0)


def load_networks(
    folder: Path, index: Config, variant: str | None, dtype: torch.dtype
) -> dict[str, Untyped]:
    """Load the networks of a pipeline, by component name.

    The pipeline itself loads the other components.
    """
    networks = {}
    for name, (library, class_name) in class_references(index):
        network_class = _network_class(library, class_name)
        if network_class is None or not (folder / name).is_dir():
            continue
        files = sorted((folder / name).glob("*.safetensors"))
        has_variant = loaded_weights(files, variant) != loaded_weights(files, None)
        options = {"variant": variant} if has_variant else {}
        try:
            networks[name] = load_network(network_class, folder / name, dtype=dtype, **options)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return networks


def _network_class(library: str, name: str) -> Untyped:
    """Return the class of a component; None if it is not a network."""
    libraries = {"diffusers": diffusers, "transformers": transformers}
    module = libraries.get(library) or getattr(diffusers.pipelines, library, None)
    found = getattr(module, name, None)
    networks = (diffusers.ModelMixin, transformers.PreTrainedModel)
    if inspect.isclass(found) and issubclass(found, networks):
        return found
    return None


def load_checkpoint(
    file: Path, folder: Path, pipeline: str, dtype: torch.dtype
) -> diffusers.DiffusionPipeline:
    """Load a single-file model with the configuration in a folder."""
    names = tensor_names(file, str(file))
    held: tuple[str, ...] = ()
    for kind, starts in STARTS.items():
        if any(name.startswith(starts) for name in names):
            held += (kind,)
    index = read_model_index(folder, str(folder))
    separate: Config = {}
    for name, (_, class_name) in class_references(index):
        may_be_separate = name.startswith(("text_encoder", "vae"))
        if not may_be_separate or class_name.startswith(held):
            continue
        if any((folder / name).glob("*.safetensors")):
            separate[name] = index[name]
    absent = [name for name, value in index.items() if value == ABSENT]
    beside: dict[str, Untyped] = dict.fromkeys(absent)
    beside |= load_networks(folder, separate, None, dtype)
    with checked_conversion(_require_filled):
        pipe = getattr(diffusers, pipeline).from_single_file(
            str(file),
            config=str(folder),
            dtype=dtype,
            local_files_only=True,
            **beside,
        )
    # Converters of text encoders keep unknown names, the others drop them.
    prefix = ""
    if any(name.startswith(DENOISER) for name in names):
        prefix = DENOISER
    parts = pipe.components
    denoiser = parts.get("unet") or parts["transformer"]
    require_applied(file, [denoiser], prefix)
    require_applied(file, [parts.get("vae")], STARTS["Autoencoder"])
    return pipe


def load_gguf(file: Path, folder: Path, index: Config, dtype: torch.dtype) -> dict[str, Untyped]:
    """Load the denoiser of a pipeline from a GGUF file, by its name in the index.

    Its configuration is in the pipeline's folder. Otherwise as `load_network`.
    """
    _import_quantizer(str(file), GGUF)
    name = denoiser_component(index)
    library, class_name = dict(class_references(index))[name]
    network_class = _network_class(library, class_name)
    if not hasattr(network_class, "from_single_file"):
        raise ValueError(f"diffusers loads no {class_name} from GGUF")
    try:
        with checked_conversion(_require_filled):
            network = network_class.from_single_file(
                str(file),
                config=str(folder / name),
                quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=dtype),
                dtype=dtype,
                local_files_only=True,
            )
    except LookupError as error:  # of the converters, for names that they need
        raise ValueError(f"its tensors are not those of a {class_name} ({error})") from error
    _require_gguf_applied(file, network)
    keep_gguf_in_linear_layers(network, dtype)
    return {name: network}


def _require_gguf_applied(file: Path, network: Untyped) -> None:
    from gguf import GGUFReader

    tensors = {each.name: each for each in GGUFReader(file).tensors}
    counts = {name: int(tensor.n_elements) for name, tensor in tensors.items()}

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(tensors[name].data.copy())

    _require_counted(counts, read, network.state_dict().values())


def _require_filled(network: Untyped, tensors: dict[str, torch.Tensor]) -> None:
    if isinstance(network, transformers.PreTrainedModel):
        network.tie_weights()  # files omit tied weights
        require_placed(tensors.keys() - network.state_dict().keys())
    require_loaded(network)
