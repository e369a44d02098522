"""Networks of diffusers and transformers, loaded from safetensors: all that is there, and no more.

The libraries fill in what files lack, at random or not at all, and drop what has no place in the
network. Either draws another picture than the files say.
"""

import inspect
import math
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import diffusers
import torch
import transformers
from safetensors import safe_open

from imagekiln.steps.generate.diffusion.lora_scales import list_names
from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.models.component_files import Config
from imagekiln.steps.models.facts import loaded_weights

# Buffers that libraries have saved and compute themselves, copies that training keeps, and the
# projection of a CLIP that is read before it. A network that needs it lacks it otherwise.
HARMLESS = re.compile(
    r"(?:^|\.)(?:position_ids|num_batches_tracked|logit_scale|logit_bias|inv_freq|masked_bias"
    r"|relative_position_index|relative_coords_table|attn_mask|text_projection(?:\.weight)?"
    r"|v_pred|ztsnr)$"
    r"|(?:^|\.)(?:model_ema|ema|ema_model)\.|^first_stage_model\.loss\."
    # Of files of Lumina 2, Z-Image and Sana, whose networks do without.
    r"|^(?:model\.diffusion_model\.)?(?:norm_final\.weight|pos_embed)$"
)
# Heads, and halves of models that see and read, of which a class takes what it is for.
OTHER_PARTS = {
    *("text_model", "vision_model", "visual_projection", "decoder", "lm_head", "pooler", "score"),
    *("vision_tower", "visual", "audio_tower", "multi_modal_projector", "mtp"),
}


def load_network(network_class: Untyped, folder: Path, **options: object) -> Untyped:
    """The network in a folder, of a class that has `from_pretrained`.

    Raises ValueError if files lack a tensor of it, or have one that it has no place for, and
    whatever loading raises.
    """
    network, info = network_class.from_pretrained(
        folder, use_safetensors=True, local_files_only=True, output_loading_info=True, **options
    )
    require_present(info["missing_keys"])
    parts = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    absent = OTHER_PARTS - parts
    require_placed(
        name
        for name in info["unexpected_keys"]
        if name.removeprefix("model.").partition(".")[0] not in absent
    )
    return network


def require_present(missing: Collection[str]) -> None:
    """Raise ValueError if there are names of tensors that files lack."""
    if missing:
        raise ValueError(f"its files lack {list_names([*missing])}")


def require_placed(unexpected: Iterable[str]) -> None:
    """Raise ValueError if there are tensors without a place that are not known to be harmless."""
    if names := [name for name in unexpected if HARMLESS.search(name) is None]:
        raise ValueError(f"it has no place for {list_names(names)} of its files")


def require_loaded(network: torch.nn.Module) -> None:
    """Raise ValueError if a network has parameters that no file gave it."""
    require_present([name for name, each in network.named_parameters() if each.is_meta])


def require_whole(pipe: diffusers.DiffusionPipeline) -> None:
    """Raise ValueError if a network of a pipeline has parameters that no file gave it."""
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module):
            with _in_component(name):
                require_loaded(component)


def require_applied(file: Path, parts: Iterable[object], prefix: str = "") -> None:
    """Raise ValueError if a file holds more numbers than the parts that were made of it.

    For loaders that say nothing of what they leave out. Parts that are no networks hold none.
    """
    networks = [part for part in parts if isinstance(part, torch.nn.Module)]
    loaded = [each for network in networks for each in network.state_dict().values()]
    flat = [each.flatten() for each in loaded]  # loaders swap halves too
    known = {_beginning(part) for each in flat for part in (each, *each.chunk(2))}
    dtypes = {each.dtype for each in loaded}
    with safe_open(file, framework="pt") as tensors:

        def is_lost(name: str) -> bool:
            tensor = tensors.get_tensor(name)
            return known.isdisjoint(_beginning(tensor.to(dtype)) for dtype in dtypes)

        names = [name for name in tensors.keys() if name.startswith(prefix)]  # noqa: SIM118
        names = [name for name in names if HARMLESS.search(name) is None or not is_lost(name)]
        numbers = sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
        if numbers > sum(map(torch.numel, loaded)):
            require_placed([name for name in names if is_lost(name)] or names)


def _beginning(tensor: torch.Tensor) -> tuple[float, ...]:
    """The first numbers of a tensor, which splitting keeps. Equal ones need its size too."""
    first = tensor.flatten()[:8].tolist()
    return (*first, tensor.numel() if len({*first}) == 1 else 0)


@contextmanager
def _in_component(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def load_networks(
    folder: Path, index: Config, pipeline: str, variant: str | None, dtype: torch.dtype
) -> dict[str, Untyped]:
    """The networks of a pipeline, by the name of the component. Raises as `load_network`.

    What is no network, or is not in a folder of its own, is left to the pipeline.
    """
    expected = inspect.signature(getattr(diffusers, pipeline).__init__).parameters
    networks = {}
    for name, value in index.items():
        network_class = _network_class(value)
        if name not in expected or network_class is None or not (folder / name).is_dir():
            continue
        files = sorted((folder / name).glob("*.safetensors"))
        has_variant = loaded_weights(files, variant) != loaded_weights(files, None)
        options = {"variant": variant} if has_variant else {}
        with _in_component(name):
            networks[name] = load_network(network_class, folder / name, dtype=dtype, **options)
    return networks


def _network_class(value: object) -> Untyped:
    """The class that an index names for a component; None if it is no network."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    library, name = map(str, value)
    libraries = {"diffusers": diffusers, "transformers": transformers}
    module = libraries.get(library) or getattr(diffusers.pipelines, library, None)
    found = getattr(module, name, None)
    networks = (diffusers.ModelMixin, transformers.PreTrainedModel)
    return found if inspect.isclass(found) and issubclass(found, networks) else None
