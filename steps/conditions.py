"""What images are drawn from beside their texts: the pictures of a run, and the networks that read them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import diffusers
import transformers

from imagekiln.steps import adapter_files, reference_files
from imagekiln.steps.adapters import ControlNet, IpAdapter
from imagekiln.steps.control_fit import unfit
from imagekiln.steps.device import is_lost, is_out_of_memory
from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.inputs import Inputs
from imagekiln.steps.pipeline import denoiser
from imagekiln.steps.plan import Plan
from imagekiln.steps.siblings import ImageEncoder, siblings
from imagekiln.steps.sight import look, require_fitting
from imagekiln.steps.storage import Store
from imagekiln.steps.store_errors import reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The pictures; a ControlNet and its scale, where the job has one; the scale of its IP-Adapter, else None."""

    inputs: Inputs
    controlnet: diffusers.ModelMixin | None = None
    control_scale: float = 1.0
    reference_scale: float | None = None


def load(pipe: diffusers.DiffusionPipeline, plan: Plan, store: Store) -> Conditions:
    """The conditions of a run in `store`. An IP-Adapter becomes a part of `pipe`.

    Raises BadInput where a network does not fit or is not as planned, Missing, TryAgain.
    """
    control, reference = plan.job.model.controlnet, plan.job.model.ip_adapter
    found = Conditions(Inputs(store, partial(look, pipe) if reference else None))
    if control is not None:
        network = _told("model.controlnet", lambda: controlnet(pipe, control, plan.adapters["control_image"]))
        found = replace(found, controlnet=network, control_scale=control.scale)
    if reference is not None:
        _told("model.ip_adapter", lambda: add_ip_adapter(pipe, reference, plan.adapters["reference_image"]))
        found = replace(found, reference_scale=reference.scale)
    return found


def controlnet(pipe: diffusers.DiffusionPipeline, wanted: ControlNet, key: str) -> diffusers.ModelMixin:
    """The ControlNet with this key, on the pipeline's device. Raises ValueError where it does not fit, and others."""
    folder = adapter_files.planned(wanted, key)
    kind = siblings(type(pipe).__name__).control
    if kind is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    network = getattr(diffusers, kind).from_pretrained(
        folder, torch_dtype=pipe.dtype, use_safetensors=True, local_files_only=True
    )
    if told := unfit(kind, network.config, denoiser(pipe).config):
        raise ValueError(f"it {told}")
    return network.to(pipe.device).eval()


def add_ip_adapter(pipe: diffusers.DiffusionPipeline, wanted: IpAdapter, key: str) -> None:
    """Make the IP-Adapter with this key a part of the pipeline. Raises what loading raises."""
    folder, kind = adapter_files.planned(wanted, key), siblings(type(pipe).__name__).reference
    if kind is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    reference_files.require(folder, wanted, kind, denoiser(pipe).config)
    _add_image_encoder(pipe, folder / wanted.image_encoder, kind)
    pipe.load_ip_adapter(str(folder), subfolder=wanted.subfolder, weight_name=wanted.weight_name, local_files_only=True)
    if lacking := [name for name, each in denoiser(pipe).named_parameters() if each.is_meta]:
        raise ValueError(f"it has no {lacking[0]}")
    denoiser(pipe).eval()
    require_fitting(pipe)


def _add_image_encoder(pipe: diffusers.DiffusionPipeline, folder: Path, kind: ImageEncoder) -> None:
    """Load it by ourselves: the pipeline would take pickles too, and what a file lacks would be drawn at random."""
    encoder, told = getattr(transformers, kind).from_pretrained(
        folder, dtype=pipe.dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
    )
    if told["missing_keys"]:
        raise ValueError(f"its image encoder has no {min(told['missing_keys'])}")
    pipe.register_modules(image_encoder=encoder.to(pipe.device).eval())
    if kind == "SiglipVisionModel":  # to CLIP's pictures, diffusers cuts them itself
        cut = transformers.SiglipImageProcessor.from_pretrained(folder, local_files_only=True)
        pipe.register_modules(feature_extractor=cut)


def _told(setting: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except KilnError:
        raise
    except Exception as error:  # whatever a stranger's folder makes the libraries raise
        if is_out_of_memory(error) or is_lost(error):
            raise TryAgain(
                f"{setting}: the device has no room for it ({reason(error)}). Run the shard again."
            ) from error
        said = f"it has no {error}" if isinstance(error, KeyError) else reason(error)
        raise BadInput(f"{setting}: does not fit the model ({said}). Name another.") from error
