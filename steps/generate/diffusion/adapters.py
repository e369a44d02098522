"""ControlNet, IP-Adapter, and the input images that they read."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import diffusers
import torch
import transformers
from diffusers.loaders import FluxIPAdapterMixin, SD3IPAdapterMixin
from diffusers.models.embeddings import ImageProjection
from PIL import Image as Pillow

from imagekiln.steps.errors import BadInput, KilnError, explained_by
from imagekiln.steps.generate.diffusion.device import explain_device
from imagekiln.steps.generate.diffusion.image_prefetch import (
    ImagePrefetcher,
    ImageRequest,
    Preprocessed,
    image_request,
)
from imagekiln.steps.generate.diffusion.loading import (
    load_network,
    require_applied,
    require_loaded,
)
from imagekiln.steps.generate.diffusion.patches import accept_batch_embeds
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineKwargs
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.models.adapters import fetch_planned_adapter
from imagekiln.steps.models.component_files import require_data_component
from imagekiln.steps.models.families import ImageEncoderClass, family_of
from imagekiln.steps.runs.image import ImageRow
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.concurrency import SingleFlightCache
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

# Stands in for a row without a reference image, and tries out an adapter.
BLANK_IMAGE = Pillow.new("RGB", (8, 8))
MAX_CACHED_REFERENCES = 256
# Of the device's memory: a reference takes 2 KB (FLUX) to 2 MB (SD 3.5).
MAX_CACHE_BYTES = 256 << 20
REFERENCE_COLUMN = "reference_image"
ReferencePair = tuple[torch.Tensor, torch.Tensor]  # an image's embedding, and that of no image


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The input images of a run and the adapters that read them."""

    image_prefetcher: ImagePrefetcher
    controlnet: diffusers.ModelMixin | None = None
    controlnet_scale: float = 1.0
    ip_adapter_scale: float | None = None


def load_adapters(pipe: diffusers.DiffusionPipeline, plan: Plan, store: Store) -> LoadedAdapters:
    """The adapters of the run in `store`. An IP-Adapter becomes a part of `pipe`."""
    control = plan.job.model.controlnet
    reference = plan.job.model.ip_adapter
    preprocess = partial(preprocess_reference, pipe) if reference else None
    adapters = LoadedAdapters(ImagePrefetcher(store, preprocess))
    if control is not None:
        folder = fetch_planned_adapter(control, plan.adapters["control_image"])
        explain = partial(_explain_misfit, "model.controlnet")
        with explained_by(explain):
            network = load_controlnet(pipe, control, folder)
        adapters = replace(
            adapters,
            controlnet=network,
            controlnet_scale=control.scale,
        )
    if reference is not None:
        folder = fetch_planned_adapter(reference, plan.adapters["reference_image"])
        explain = partial(_explain_misfit, "model.ip_adapter")
        with explained_by(explain):
            load_ip_adapter(pipe, reference, folder)
        adapters = replace(adapters, ip_adapter_scale=reference.scale)
    return adapters


def load_controlnet(
    pipe: diffusers.DiffusionPipeline, settings: ControlNetSettings, folder: Path
) -> diffusers.ModelMixin:
    """The ControlNet in a folder, on the pipeline's device."""
    name = family_of(type(pipe).__name__).controlnet
    if name is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    require_data_component(folder, settings.setting_path)
    network = load_network(getattr(diffusers, name), folder, dtype=pipe.dtype)
    return network.to(pipe.device).eval()


def _explain_misfit(setting: str, error: Exception) -> KilnError:
    """Explain an error of the libraries about a user's folder."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else error_reason(error)
    return explain_device(setting, error) or BadInput(
        f"{setting}: does not fit the model ({reason}). Choose another."
    )


class ReferenceEmbeddings:
    """The embeddings of reference images, for a pipeline with an IP-Adapter and its siblings."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        scale: float,
        preprocessed: Callable[[ImageRequest], Preprocessed],
    ) -> None:
        """Take the pipeline, the adapter's scale, and what gives a preprocessed reference image."""
        self._pipe = pipe
        self._scale = scale
        self._preprocessed = preprocessed
        self._blank = encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))
        size = sum(tensor.untyped_storage().nbytes() for tensor in self._blank)
        capacity = max(1, min(MAX_CACHED_REFERENCES, MAX_CACHE_BYTES // size))
        self._embeddings = SingleFlightCache(self._encode, capacity)
        self.attach(pipe)

    def attach(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Have a pipeline take the embeddings of a whole batch as they are."""
        accept_batch_embeds(pipe)

    def pipeline_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """The arguments for rows that all have a reference image, or all have none."""
        if rows[0].parameters.reference_image is None:
            self._pipe.set_ip_adapter_scale(0.0)
            pairs = [self._blank] * len(rows)
        else:
            self._pipe.set_ip_adapter_scale(self._scale)
            pairs = [self._embeddings(image_request(row, REFERENCE_COLUMN)) for row in rows]

        positive = torch.stack([pair[0] for pair in pairs])
        negative = torch.stack([pair[1] for pair in pairs])
        kwargs: PipelineKwargs = {"ip_adapter_image_embeds": [negative, positive]}
        if isinstance(self._pipe, FluxIPAdapterMixin):
            # Without this argument, it would encode a black image for each batch.
            kwargs["negative_ip_adapter_image_embeds"] = [negative, negative]
        return kwargs

    def _encode(self, request: ImageRequest) -> ReferencePair:
        return encode_reference(self._pipe, self._preprocessed(request))


def preprocess_reference(pipe: diffusers.DiffusionPipeline, image: Pillow.Image) -> torch.Tensor:
    """The image as its encoder takes it, float32 (1, channels, height, width)."""
    pixels: torch.Tensor = pipe.feature_extractor([image], return_tensors="pt").pixel_values
    return pixels


def encode_reference(
    pipe: diffusers.DiffusionPipeline, preprocessed: torch.Tensor
) -> ReferencePair:
    """The embeddings, for one image of a batch, of a reference image and of its absence."""
    with torch.no_grad():
        if isinstance(pipe, SD3IPAdapterMixin):
            return _with_zeros(pipe.encode_image(preprocessed, pipe.device)[0])
        if isinstance(pipe, FluxIPAdapterMixin):
            return _with_zeros(pipe.encode_image(preprocessed, pipe.device, 1))
        (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
        hidden_states = not isinstance(layer, ImageProjection)
        positive, negative = pipe.encode_image(preprocessed, pipe.device, 1, hidden_states)
    return positive, negative


def _with_zeros(positive: torch.Tensor) -> ReferencePair:
    """An embedding, and zeros of its shape that take no memory."""
    return positive, positive.new_zeros(()).expand_as(positive)


def load_ip_adapter(
    pipe: diffusers.DiffusionPipeline, settings: IpAdapterSettings, folder: Path
) -> None:
    """Make the IP-Adapter in a folder a part of the pipeline. Raises what loading raises."""
    encoder_class = family_of(type(pipe).__name__).ip_adapter_encoder
    if encoder_class is None:
        raise ValueError(f"{type(pipe).__name__} takes none")
    require_data_component(folder / settings.image_encoder, settings.setting_path)
    _load_image_encoder(pipe, folder / settings.image_encoder, encoder_class)
    denoiser = denoiser_network(pipe)
    with suppress(NotImplementedError):  # what is not in the file cannot be moved to the device
        pipe.load_ip_adapter(
            str(folder),
            subfolder=settings.subfolder,
            weight_name=settings.weight_name,
            local_files_only=True,
        )
    require_loaded(denoiser)
    projection = getattr(denoiser, "image_proj", None) or denoiser.encoder_hid_proj
    file = folder / settings.weight_patterns[0]
    require_applied(file, [projection, *denoiser.attn_processors.values()])
    denoiser.eval()
    check_ip_adapter(pipe)


def _load_image_encoder(
    pipe: diffusers.DiffusionPipeline, folder: Path, encoder_class: ImageEncoderClass
) -> None:
    """Load the image encoder: the pipeline itself would take pickles."""
    encoder = load_network(getattr(transformers, encoder_class), folder, dtype=pipe.dtype)
    pipe.register_modules(image_encoder=encoder.to(pipe.device).eval())
    if encoder_class == "SiglipVisionModel":  # for CLIP, diffusers makes the extractor itself
        extractor = transformers.SiglipImageProcessor.from_pretrained(folder, local_files_only=True)
        pipe.register_modules(feature_extractor=extractor)


def check_ip_adapter(pipe: diffusers.DiffusionPipeline) -> None:
    """Raise PyTorch's error if the adapter cannot read the output of its image encoder."""
    positive, _ = encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))
    with torch.no_grad():
        if isinstance(pipe, SD3IPAdapterMixin):
            time = torch.zeros(1, device=pipe.device)
            states, embedded_time = pipe.transformer.image_proj(positive[None], time)
            processor = next(iter(pipe.transformer.attn_processors.values()))
            processor.to_k_ip(processor.norm_ip(states, temb=embedded_time))
        elif isinstance(pipe, FluxIPAdapterMixin):
            (states,) = pipe.transformer.encoder_hid_proj([positive[None]])
            processor = next(iter(pipe.transformer.attn_processors.values()))
            processor.to_k_ip[0](states)
        else:
            (layer,) = pipe.unet.encoder_hid_proj.image_projection_layers
            layer(positive)
