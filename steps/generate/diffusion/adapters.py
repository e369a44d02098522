"""ControlNet, IP-Adapter, and the input images that they read."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import diffusers
import torch
import transformers
from diffusers.loaders import FluxIPAdapterMixin, SD3IPAdapterMixin
from diffusers.models.embeddings import ImageProjection
from PIL import Image as Pillow

from imagekiln.steps.errors import BadInput, KilnError, explained_by
from imagekiln.steps.generate.diffusion.device import explain_device
from imagekiln.steps.generate.diffusion.loading import (
    load_network,
    require_applied,
    require_loaded,
)
from imagekiln.steps.generate.diffusion.patches import accept_batch_embeds, execution_device
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.pipeline_inputs import PipelineKwargs
from imagekiln.steps.imaging.input_images import open_input_image, resize_to_cover
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.models.adapters import fetch_planned_adapter
from imagekiln.steps.models.component_files import require_data_component
from imagekiln.steps.models.families import family_of
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS, ImageRow
from imagekiln.steps.runs.keys import input_image_digests, input_image_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import read_input_image
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

# For rows without a reference image, and to test an adapter.
BLANK_IMAGE = Pillow.new("RGB", (8, 8))
MAX_CACHED_REFERENCES = 256
# Of the device's memory: a reference takes 2 KB (FLUX) to 2 MB (SD 3.5).
MAX_CACHE_BYTES = 256 << 20
REFERENCE_COLUMN = "reference_images"  # scaled by the image encoder itself
MASK_COLUMN = "mask_image"
READER_THREADS = 4
Preprocessed: TypeAlias = Any  # transformers' processors have no types
ReferencePair = tuple[torch.Tensor, torch.Tensor]  # an image's embedding, and the unconditional one


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An input image of one row, with its size in pixels; None if an image encoder resizes it."""

    sha256: str
    grayscale: bool
    size: tuple[int, int] | None


class InputImageReader:
    """Reads and prepares the input images of a run in threads. Not itself thread-safe."""

    def __init__(
        self, store: Store, preprocess: Callable[[Pillow.Image], Preprocessed] | None = None
    ) -> None:
        """Take the run's store, and the function that prepares reference images, if any."""
        self._store = store
        self._preprocess = preprocess
        self._pool = ThreadPoolExecutor(READER_THREADS)
        self._cached: dict[ImageRequest, Future[Preprocessed]] = {}  # the latest is the last
        self._capacity = 1

    def prefetch(self, rows: Sequence[ImageRow]) -> None:
        """Begin to read the images of a batch. Keeps the images of one previous batch."""
        requests = [
            request
            for row in rows
            for column in INPUT_IMAGE_COLUMNS
            for request in image_requests(row, column)
        ]
        self._capacity = max(self._capacity, 2 * len(requests))
        for request in requests:
            self._submit(request)

    def get(self, request: ImageRequest) -> Preprocessed:
        """Return the image in RGB, or a mask in gray, resized; a reference image preprocessed."""
        try:
            return self._submit(request).result()
        except BaseException:
            self._cached.pop(request, None)
            raise

    def close(self) -> None:
        """Stop the threads and drop images that are still queued."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, request: ImageRequest) -> "Future[Preprocessed]":
        future = self._cached.pop(request, None) or self._pool.submit(self._read_image, request)
        self._cached[request] = future
        if len(self._cached) > self._capacity:
            del self._cached[next(iter(self._cached))]
        return future

    def _read_image(self, request: ImageRequest) -> Preprocessed:
        content = read_input_image(self._store, input_image_key(request.sha256))
        image = open_input_image(content)
        if request.size is None:
            return self._preprocess(image) if self._preprocess else image
        image = resize_to_cover(image, *request.size)
        return image.convert("L") if request.grayscale else image


def image_requests(row: ImageRow, column: str) -> list[ImageRequest]:
    """Build the requests for a row's images in a column; several of references, else one or none.

    Reference images keep their sizes.
    """
    size = None
    if column != REFERENCE_COLUMN:
        size = (row.parameters.width, row.parameters.height)
    digests = input_image_digests(getattr(row.parameters, column))
    return [ImageRequest(digest, column == MASK_COLUMN, size) for digest in digests]


@dataclass(frozen=True, slots=True)
class LoadedAdapters:
    """The input images of a run and the adapters that read them."""

    images: InputImageReader
    controlnet: diffusers.ModelMixin | None = None
    controlnet_scale: float = 1.0
    references: "ReferenceEmbeddings | None" = None


def load_adapters(pipe: diffusers.DiffusionPipeline, plan: Plan, store: Store) -> LoadedAdapters:
    """Load the adapters of the run in `store`. An IP-Adapter becomes a part of `pipe`."""
    control = plan.job.model.controlnet
    reference = plan.job.model.ip_adapter
    adapters = LoadedAdapters(
        InputImageReader(store, partial(preprocess_reference, pipe) if reference else None)
    )
    if control is not None:
        with _loading(plan, control, "control_image") as folder:
            network = load_controlnet(pipe, folder)
        adapters = replace(adapters, controlnet=network, controlnet_scale=control.scale)
    if reference is not None:
        with _loading(plan, reference, "reference_images") as folder:
            load_ip_adapter(pipe, reference, folder)
        references = ReferenceEmbeddings(pipe, reference.scale, adapters.images.get)
        adapters = replace(adapters, references=references)
    return adapters


@contextmanager
def _loading(
    plan: Plan, settings: ControlNetSettings | IpAdapterSettings, column: str
) -> Iterator[Path]:
    """Fetch the planned files of an adapter; yield their folder to the block that loads them."""
    folder = fetch_planned_adapter(settings, plan.adapters[column])
    explain = partial(_explain_misfit, settings.setting_path)
    with explained_by(explain):
        yield folder


def load_controlnet(pipe: diffusers.DiffusionPipeline, folder: Path) -> diffusers.ModelMixin:
    """Load the ControlNet in a folder onto the pipeline's device."""
    name = family_of(type(pipe).__name__).controlnet
    require_data_component(folder, ControlNetSettings.setting_path)
    network = load_network(getattr(diffusers, str(name)), folder, dtype=pipe.dtype)
    return network.to(pipe.device).eval()


def _explain_misfit(setting: str, error: Exception) -> KilnError:
    """Convert an error that the libraries raised about a user's folder."""
    reason = f"it has no {error}" if isinstance(error, KeyError) else error_reason(error)
    return explain_device(setting, error) or BadInput(
        f"{setting}: does not fit the model ({reason}). Choose another."
    )


class ReferenceEmbeddings:
    """Encodes reference images for a pipeline with an IP-Adapter and its siblings."""

    def __init__(
        self,
        pipe: diffusers.DiffusionPipeline,
        scale: float,
        get_image: Callable[[ImageRequest], Preprocessed],
    ) -> None:
        """Take the pipeline, the adapter's scale, and the function that preprocesses an image."""
        self._pipe = pipe
        self._scale = scale
        self._blank = encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))
        size = sum(tensor.untyped_storage().nbytes() for tensor in self._blank)
        capacity = max(1, min(MAX_CACHED_REFERENCES, MAX_CACHE_BYTES // size))

        @lru_cache(capacity)
        def encode(request: ImageRequest) -> ReferencePair:
            return encode_reference(pipe, get_image(request))

        self._embeddings = encode
        self.attach(pipe)

    def attach(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Make a pipeline accept the embeddings of a whole batch unchanged."""
        accept_batch_embeds(pipe)

    def pipeline_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """Build the arguments for rows that all have a reference image, or all have none."""
        if rows[0].parameters.reference_images is None:
            self._pipe.set_ip_adapter_scale(0.0)
            pairs = [self._blank] * len(rows)
        else:
            self._pipe.set_ip_adapter_scale(self._scale)
            pairs = [
                self._embeddings(request)
                for row in rows
                for request in image_requests(row, REFERENCE_COLUMN)
            ]

        positive = torch.stack([pair[0] for pair in pairs])
        negative = torch.stack([pair[1] for pair in pairs])
        kwargs: PipelineKwargs = {"ip_adapter_image_embeds": [negative, positive]}
        if isinstance(self._pipe, FluxIPAdapterMixin):
            # Without this argument, the pipeline would encode a black image for each batch.
            kwargs["negative_ip_adapter_image_embeds"] = [negative, negative]
        return kwargs


def preprocess_reference(pipe: diffusers.DiffusionPipeline, image: Pillow.Image) -> torch.Tensor:
    """Preprocess an image for the image encoder, to float32 (1, channels, height, width)."""
    pixels: torch.Tensor = pipe.feature_extractor([image], return_tensors="pt").pixel_values
    return pixels


def encode_reference(
    pipe: diffusers.DiffusionPipeline, preprocessed: torch.Tensor
) -> ReferencePair:
    """Encode a reference image; return its embedding and the unconditional one, for one image."""
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
    """Pair an embedding with zeros of the same shape, which take no memory."""
    return positive, positive.new_zeros(()).expand_as(positive)


def load_ip_adapter(
    pipe: diffusers.DiffusionPipeline, settings: IpAdapterSettings, folder: Path
) -> None:
    """Load the IP-Adapter in a folder into the pipeline. Raises any error of the libraries."""
    require_data_component(folder / settings.image_encoder, settings.setting_path)
    _load_image_encoder(pipe, folder / settings.image_encoder)
    denoiser = denoiser_network(pipe)
    with suppress(NotImplementedError):  # weights that the file lacks cannot be moved
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
    for processor in denoiser.attn_processors.values():
        if isinstance(processor, torch.nn.Module):  # if layers are copied as they compute
            processor.to(execution_device(pipe))
    if hasattr(pipe, "unet"):  # else planning has compared them
        (layer,) = denoiser.encoder_hid_proj.image_projection_layers
        layer(encode_reference(pipe, preprocess_reference(pipe, BLANK_IMAGE))[0])


def _load_image_encoder(pipe: diffusers.DiffusionPipeline, folder: Path) -> None:
    """Load the image encoder from safetensors; the pipeline itself would also load pickles."""
    family = family_of(type(pipe).__name__)
    encoder_class = str(family.ip_adapter_encoder)
    encoder = load_network(getattr(transformers, encoder_class), folder, dtype=pipe.dtype)
    pipe.register_modules(image_encoder=encoder.to(pipe.device).eval())
    if encoder_class == "SiglipVisionModel":  # for CLIP, diffusers creates the extractor
        extractor = transformers.SiglipImageProcessor.from_pretrained(folder, local_files_only=True)
        pipe.register_modules(feature_extractor=extractor)
