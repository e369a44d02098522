"""What images are drawn from beside their texts: the pictures of a run, and the networks that read them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import diffusers
import transformers

from imagekiln.steps import adapter_files, reference_files
from imagekiln.steps.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.control_fit import controlnet_mismatch
from imagekiln.steps.device import is_device_lost, is_out_of_memory
from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.inputs import ImagePrefetcher
from imagekiln.steps.pipeline import denoiser_network
from imagekiln.steps.plan import Plan
from imagekiln.steps.siblings import ImageEncoderClass, variants_of
from imagekiln.steps.sight import check_ip_adapter, preprocess_reference
from imagekiln.steps.storage import Store
from imagekiln.steps.store_errors import error_reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The pictures; a ControlNet and its scale, where the job has one; the scale of its IP-Adapter, else None."""

    image_prefetcher: ImagePrefetcher
    controlnet: diffusers.ModelMixin | None = None
    controlnet_scale: float = 1.0
    ip_adapter_scale: float | None = None


def load_adapters(pipe: diffusers.DiffusionPipeline, plan: Plan, store: Store) -> LoadedAdapters:
    """The conditions of a run in `store`. An IP-Adapter becomes a part of `pipe`.

    Raises BadInput where a network does not fit or is not as planned, Missing, TryAgain.
    """
    control, reference = plan.job.model.controlnet, plan.job.model.ip_adapter
    found = LoadedAdapters(ImagePrefetcher(store, partial(preprocess_reference, pipe) if reference else None))
    if control is not None:
        network = _load_or_explain(
            "model.controlnet", lambda: load_controlnet(pipe, control, plan.adapters["control_image"])
        )
        found = replace(found, controlnet=network, controlnet_scale=control.scale)
    if reference is not None:
        _load_or_explain("model.ip_adapter", lambda: load_ip_adapter(pipe, reference, plan.adapters["reference_image"]))
        found = replace(found, ip_adapter_scale=reference.scale)
    return found


def load_controlnet(pipe: diffusers.DiffusionPipeline, wanted: ControlNetSettings, key: str) -> diffusers.ModelMixin:
    """The ControlNet with this key, on the pipeline's device. Raises ValueError where it does not fit, and others."""
    folder = adapter_files.fetch_planned_adapter(wanted, key)
    kind = variants_of(type(pipe).__name__).controlnet
    if kind is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    network = getattr(diffusers, kind).from_pretrained(
        folder, torch_dtype=pipe.dtype, use_safetensors=True, local_files_only=True
    )
    if told := controlnet_mismatch(kind, network.config, denoiser_network(pipe).config):
        raise ValueError(f"it {told}")
    return network.to(pipe.device).eval()


def load_ip_adapter(pipe: diffusers.DiffusionPipeline, wanted: IpAdapterSettings, key: str) -> None:
    """Make the IP-Adapter with this key a part of the pipeline. Raises what loading raises."""
    folder, kind = adapter_files.fetch_planned_adapter(wanted, key), variants_of(type(pipe).__name__).ip_adapter_encoder
    if kind is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    reference_files.require_ip_adapter_files(folder, wanted, kind, denoiser_network(pipe).config)
    _load_image_encoder(pipe, folder / wanted.image_encoder, kind)
    pipe.load_ip_adapter(str(folder), subfolder=wanted.subfolder, weight_name=wanted.weight_name, local_files_only=True)
    if lacking := [name for name, each in denoiser_network(pipe).named_parameters() if each.is_meta]:
        raise ValueError(f"it has no {lacking[0]}")
    denoiser_network(pipe).eval()
    check_ip_adapter(pipe)


def _load_image_encoder(pipe: diffusers.DiffusionPipeline, folder: Path, kind: ImageEncoderClass) -> None:
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


def _load_or_explain(setting: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except KilnError:
        raise
    except Exception as error:  # whatever a stranger's folder makes the libraries raise
        if is_out_of_memory(error) or is_device_lost(error):
            raise TryAgain(
                f"{setting}: the device has no room for it ({error_reason(error)}). Run the shard again."
            ) from error
        said = f"it has no {error}" if isinstance(error, KeyError) else error_reason(error)
        raise BadInput(f"{setting}: does not fit the model ({said}). Name another.") from error
