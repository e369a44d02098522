"""What images are drawn from besides their texts: input images, and the networks that read them."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import diffusers

from imagekiln.steps.errors import BadInput, KilnError, explained_by
from imagekiln.steps.generate.diffusion.device import explain_device
from imagekiln.steps.generate.diffusion.image_prefetch import ImagePrefetcher
from imagekiln.steps.generate.diffusion.ip_adapter import load_ip_adapter, preprocess_reference
from imagekiln.steps.generate.diffusion.loading import load_network
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.job.adapters import ControlNetSettings
from imagekiln.steps.models.adapters import controlnet_mismatch, fetch_planned_adapter
from imagekiln.steps.models.component_files import require_data_component
from imagekiln.steps.models.families import family_of
from imagekiln.steps.models.hub import loading_from_cache
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The input images; the ControlNet and its scale; the IP-Adapter's scale.

    None: the job has none.
    """

    image_prefetcher: ImagePrefetcher
    controlnet: diffusers.ModelMixin | None = None
    controlnet_scale: float = 1.0
    ip_adapter_scale: float | None = None


def load_adapters(pipe: diffusers.DiffusionPipeline, plan: Plan, store: Store) -> LoadedAdapters:
    """The adapters of the run in `store`. An IP-Adapter becomes a part of `pipe`.

    Raises BadInput where a network does not fit or is not the planned one, Missing, TryAgain.
    """
    control = plan.job.model.controlnet
    reference = plan.job.model.ip_adapter
    preprocess = partial(preprocess_reference, pipe) if reference else None
    adapters = LoadedAdapters(ImagePrefetcher(store, preprocess))
    if control is not None:
        folder = fetch_planned_adapter(control, plan.adapters["control_image"])
        explain = partial(_explain_misfit, "model.controlnet")
        with (
            loading_from_cache(control.id, folder),
            explained_by(explain),
        ):
            network = load_controlnet(pipe, control, folder)
        adapters = replace(
            adapters,
            controlnet=network,
            controlnet_scale=control.scale,
        )
    if reference is not None:
        folder = fetch_planned_adapter(reference, plan.adapters["reference_image"])
        explain = partial(_explain_misfit, "model.ip_adapter")
        with (
            loading_from_cache(reference.id, folder),
            explained_by(explain),
        ):
            load_ip_adapter(pipe, reference, folder)
        adapters = replace(adapters, ip_adapter_scale=reference.scale)
    return adapters


def load_controlnet(
    pipe: diffusers.DiffusionPipeline, settings: ControlNetSettings, folder: Path
) -> diffusers.ModelMixin:
    """The ControlNet in a folder, on the pipeline's device.

    Raises ValueError where it does not fit.
    """
    name = family_of(type(pipe).__name__).controlnet
    if name is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    require_data_component(folder, settings.setting_path)
    network = load_network(getattr(diffusers, name), folder, dtype=pipe.dtype)
    mismatch = controlnet_mismatch(name, network.config, denoiser_network(pipe).config)
    if mismatch:
        raise ValueError(f"it {mismatch}")
    return network.to(pipe.device).eval()


def _explain_misfit(setting: str, error: Exception) -> KilnError:
    """What a user's folder makes of the libraries' errors, which may be any."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else error_reason(error)
    return explain_device(setting, error) or BadInput(
        f"{setting}: does not fit the model ({reason}). Choose another."
    )
