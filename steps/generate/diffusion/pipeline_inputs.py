"""The arguments of a pipeline's call: prompts, noise and settings, by its family."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import diffusers
import torch
from PIL import Image as Pillow

from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.patches import pack_latents, to_device
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.placing import PlacedWeights
from imagekiln.steps.generate.diffusion.text_encoding import (
    DEVICE_LIMITS,
    HOST_LIMITS,
    PromptEncoder,
    TextCache,
    TextRequest,
    stack_embeds,
)
from imagekiln.steps.imaging.input_images import resize_to_cover
from imagekiln.steps.models.families import EmbeddingIndices, family_of, known_call_of
from imagekiln.steps.runs.image import ImageRow, pad_rows

PipelineKwargs = dict[str, object]
StepCallback = Callable[[], None]
PADDED_TEXTS = "its texts are padded without a mask, or decide for the whole batch"
REFERENCES = "each row has its own reference images"
TEXT_STEP = 64  # tokens: single prompts are padded to a multiple, to share compiled code


class PipelineInputs:
    """Builds a pipeline's arguments from rows of one shape."""

    def __init__(self, placed: PlacedWeights, loras: LoraLayers | None = None) -> None:
        """Inspect the pipeline's arguments. LoRAs may change the embeddings of prompts."""
        pipe = placed.pipe
        self._pipe = pipe
        self._placed = placed
        self._loras = loras
        self._accepts = set(inspect.signature(pipe.__call__).parameters)
        name = type(pipe).__name__
        self._family = family_of(name)
        self._call = known_call_of(name)
        # Why batches are split. Of a pipeline that no table knows, a trial tells.
        self.one_at_a_time = PADDED_TEXTS if self._family.one_at_a_time else None
        if self._call.needs_images:
            self.one_at_a_time = REFERENCES
        if self._family.positive_embeds:
            encoder = PromptEncoder(placed, self._family)
            limits = HOST_LIMITS if placed.takes_turns else DEVICE_LIMITS
            self._prompts = TextCache(encoder.encode_prompt, limits)
            self._negative_prompts = TextCache(encoder.encode_negative_prompt, limits)

    def for_sibling(self, sibling: diffusers.DiffusionPipeline) -> "PipelineInputs":
        """Return a copy for a pipeline of the same components, which shares cached prompts."""
        inputs = copy.copy(self)
        inputs._accepts = set(inspect.signature(sibling.__call__).parameters)
        return inputs

    def accepts(self, name: str) -> bool:
        """Return whether the pipeline takes an argument of this name."""
        return name in self._accepts

    def takes_one_row(self, row: ImageRow) -> bool:
        """Return whether rows like this one are generated one at a time.

        A list of reference images is one prompt's for some pipelines, and a batch for others.
        """
        has_adapter = getattr(self._pipe, "image_encoder", None) is not None
        has_references = row.parameters.reference_images is not None
        return self.one_at_a_time is not None or (has_references and not has_adapter)

    def split_batches(self, rows: Sequence[ImageRow], size: int) -> list[list[ImageRow]]:
        """Split rows of one shape into calls: one padded to `size`, or one per row."""
        if self.takes_one_row(rows[0]):
            return [[row] for row in rows]
        return [pad_rows(rows, size)]

    @property
    def output_type(self) -> str:
        """The `output_type` of the call: tensors for known families, whose range is [0, 1]."""
        return "pt" if self._family.positive_embeds else "np"

    @property
    def encodes_texts(self) -> bool:
        """`True` if prompts are encoded here and not in the pipeline's call."""
        return bool(self._family.positive_embeds)

    def uncached_texts(self, rows: Sequence[ImageRow]) -> list[TextRequest]:
        """List the prompts of these rows of one shape that are not encoded yet."""
        if not rows or not self.encodes_texts:
            return []
        loras = self._activate_text_loras(rows[0])
        return [
            TextRequest(cache, text, loras)
            for cache, _, texts in self._texts_of(rows)
            for text in cache.uncached(texts, loras)
        ]

    def _texts_of(
        self, rows: Sequence[ImageRow]
    ) -> Iterator[tuple[TextCache, EmbeddingIndices, Sequence[str]]]:
        """Yield prompts and, with guidance, negative prompts, with their cache and arguments."""
        prompts = [row.parameters.prompt for row in rows]
        yield self._prompts, self._family.positive_embeds, prompts
        guidance = rows[0].parameters.guidance
        if self._call.is_guided(guidance):
            negative_prompts = [row.parameters.negative_prompt for row in rows]
            yield self._negative_prompts, self._family.negative_embeds, negative_prompts

    def activate_loras(self, row: ImageRow) -> None:
        """Activate the row's LoRAs in the components that the pipeline's call runs."""
        if self._loras is None:
            return
        self._loras.activate(row.parameters.loras, texts=False)
        if not self.encodes_texts:
            self._loras.activate(row.parameters.loras, texts=True)

    def text_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """Build the arguments for prompts: embeddings if the family is known, else strings."""
        if not self._family.positive_embeds:
            return self._plain_text_kwargs(rows)
        kwargs: PipelineKwargs = {}
        if self.accepts("negative_prompt"):
            kwargs["negative_prompt"] = None
        length = self.text_tokens(rows)
        if length is not None:
            kwargs["max_sequence_length"] = length

        loras = self._activate_text_loras(rows[0])
        for cache, names, texts in self._texts_of(rows):
            tensors = stack_embeds([cache.get(text, loras) for text in texts], length)
            if self._placed.takes_turns:
                tensors = [tensor.to(self._placed.device) for tensor in tensors]
            for name, tensor in zip(names, tensors, strict=True):
                kwargs[name] = list(tensor) if self._family.embeds_as_list else tensor
        return kwargs

    def text_tokens(self, rows: Sequence[ImageRow]) -> int | None:
        """Return the tokens to which prompts are padded; None if the pipeline pads them itself."""
        longest = self._family.pad_to_tokens
        if longest is None or len(rows) > 1:
            return longest
        loras = self._activate_text_loras(rows[0])
        tokens = 0
        for cache, _, (text,) in self._texts_of(rows):
            embeds, *_ = cache.get(text, loras)
            tokens = max(tokens, embeds.shape[1])
        # At least one token of padding: without any, diffusers drops the mask, and kernels differ.
        steps = tokens // TEXT_STEP + 1
        return min(longest, TEXT_STEP * steps)

    def _plain_text_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        prompts = [row.parameters.prompt for row in rows]
        negative_prompts = [row.parameters.negative_prompt for row in rows]
        kwargs: PipelineKwargs = {"prompt": _single_or_list(prompts)}
        # Guidance by this scale needs a negative prompt, even an empty one.
        needs_one = self._call.guidance_argument == "true_cfg_scale"
        if (needs_one or any(negative_prompts)) and self.accepts("negative_prompt"):
            kwargs["negative_prompt"] = _single_or_list(negative_prompts)
        return kwargs

    def batch_kwargs(self, rows: Sequence[ImageRow], after_step: StepCallback) -> PipelineKwargs:
        """Build all arguments except the prompts: noise, settings and the callback."""
        kwargs = self.noise_kwargs(rows)
        return kwargs | self.settings_kwargs(rows[0]) | self.callback_kwargs(after_step)

    def noise_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """Build a CPU generator for each image, and initial noise sampled from it in float32.

        Noise therefore does not depend on device, dtype or neighbors.
        """
        generators = [_make_generator(row) for row in rows]
        if not self.encodes_texts:
            # Anything that the pipeline samples without a generator must follow from the row too.
            torch.manual_seed(rows[0].parameters.seed)
            # Every pipeline takes a generator; some take no list of one.
            return {"generator": generators if len(rows) > 1 else generators[0]}

        if rows[0].parameters.source_image is not None:
            return {"generator": generators}  # the pipeline mixes its noise with the image
        shape = self._latent_shape(rows[0])
        noise = torch.stack(
            [
                torch.randn(shape, generator=generator, dtype=torch.float32)
                for generator in generators
            ]
        )
        if self._family.latent_layout == "packed":
            noise = pack_latents(self._pipe, noise)
        dtype = denoiser_network(self._pipe).dtype
        if self._family.float32_latents:
            dtype = torch.float32
        return {"generator": generators, "latents": to_device(noise.to(dtype), self._pipe.device)}

    def settings_kwargs(self, row: ImageRow) -> PipelineKwargs:
        """Build the arguments for size, steps and guidance, by the pipeline's names for them.

        Drops settings that the pipeline does not take. Raises ValueError for a guidance.
        """
        parameters = row.parameters
        kwargs: PipelineKwargs = {
            "width": parameters.width,
            "height": parameters.height,
            "num_inference_steps": parameters.steps,
            # Binning generates another size and resizes it.
            "use_resolution_binning": False,
            "max_area": parameters.width * parameters.height,
        }
        if parameters.steps != 2:
            # SanaSprint's default is for two steps, and is refused with other numbers of steps.
            kwargs["intermediate_timesteps"] = None
        if parameters.guidance is not None:
            kwargs |= self._guidance_kwargs(parameters.guidance)
        if parameters.guidance_rescale is not None:
            kwargs["guidance_rescale"] = parameters.guidance_rescale
        return {name: value for name, value in kwargs.items() if self.accepts(name)}

    def _guidance_kwargs(self, guidance: float) -> PipelineKwargs:
        """Build the argument for guidance, which replaces the pipeline's own schedule."""
        name = self._call.guidance_argument
        if name is None or not self.accepts(name):
            raise ValueError(f"the pipeline takes no guidance, and the row has {guidance:g}")
        return {name: guidance, "guidance_schedule": None}

    def reference_kwargs(self, row: ImageRow, images: Sequence[Pillow.Image]) -> PipelineKwargs:
        """Build the argument for the reference images of a row, of any sizes."""
        name = self._call.images_argument
        if name is None or not self.accepts(name):
            raise ValueError("the pipeline takes no reference images, and the row has some")
        if not self.accepts("width") and self._call.takes_size:
            size = (row.parameters.width, row.parameters.height)
            images = [resize_to_cover(image, *size) for image in images]
        if self._call.max_images == 1:
            return {name: images[0]}
        return {name: list(images)}

    def callback_kwargs(self, after_step: StepCallback) -> PipelineKwargs:
        """Build the argument for the callback; none if the pipeline reports no steps."""
        if self.accepts("callback_on_step_end"):
            return {"callback_on_step_end": partial(_call_after_step, after_step)}
        if self.accepts("callback"):  # PixArt's
            return {"callback": lambda _step, _time, _latents: after_step()}
        return {}

    def _latent_shape(self, row: ImageRow) -> tuple[int, int, int]:
        """Return the shape (channels, height, width) of an image's initial noise."""
        channels: int = denoiser_network(self._pipe).config.in_channels
        scale: int = self._pipe.vae_scale_factor
        height = row.parameters.height // scale
        width = row.parameters.width // scale
        if self._family.latent_layout == "packed":
            return channels // 4, height, width
        if self._family.latent_layout == "folded":
            return channels, height // 2, width // 2
        return channels, height, width

    def _activate_text_loras(self, row: ImageRow) -> str | None:
        """Activate the row's LoRAs in the text encoders; return those that change a layer."""
        if self._loras is None:
            return None
        return self._loras.activate(row.parameters.loras, texts=True)


def _single_or_list(prompts: list[str]) -> str | list[str]:
    """Unpack a single prompt: some pipelines take no list."""
    return prompts if len(prompts) > 1 else prompts[0]


def _call_after_step(
    after_step: StepCallback,
    _pipe: diffusers.DiffusionPipeline,
    _step: int,
    _time: object,
    tensors: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    after_step()
    return tensors


def _make_generator(row: ImageRow) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(row.parameters.seed)
