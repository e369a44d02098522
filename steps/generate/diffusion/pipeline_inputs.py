"""What a pipeline is told of a batch: its text, its noise and its settings, in the way of its family."""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import diffusers
import torch

from imagekiln.steps.generate.diffusion.loras import LoraLayers
from imagekiln.steps.generate.diffusion.pipeline import denoiser_network
from imagekiln.steps.generate.diffusion.text_encoding import (
    PromptEmbeds,
    PromptEncoder,
    TextCache,
    TextRequest,
    stack_embeds,
)
from imagekiln.steps.models.families import EmbeddingIndices, family_of
from imagekiln.steps.runs.image import ImageRow, pad_rows

PipelineKwargs = dict[str, object]


class PipelineInputs:
    """Turns rows of one shape into a pipeline's arguments."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, loras: LoraLayers | None = None) -> None:
        """Look at what the pipeline takes. Its family is that of its class; its LoRAs may change what texts become."""
        self._pipe = pipe
        self._loras = loras
        self._accepts = set(inspect.signature(pipe.__call__).parameters)
        self._family = family_of(type(pipe).__name__)
        if self._family.positive_embeds:
            encoder = PromptEncoder(pipe, self._family)
            self._positive, self._negative = (
                TextCache(encoder.encode_prompt),
                TextCache(encoder.encode_negative_prompt),
            )

    def for_sibling(self, sibling: diffusers.DiffusionPipeline) -> "PipelineInputs":
        """The same, texts and all, for a pipeline with the same components whose call takes other arguments."""
        other = copy.copy(self)
        other._accepts = set(inspect.signature(sibling.__call__).parameters)
        return other

    def accepts(self, name: str) -> bool:
        """Whether the pipeline takes an argument of this name."""
        return name in self._accepts

    def split_batches(self, rows: Sequence[ImageRow], size: int) -> list[list[ImageRow]]:
        """The batches in which rows of one shape are drawn: one of `size`, or a row at a time where neighbours tell."""
        return [[row] for row in rows] if self._family.one_at_a_time else [pad_rows(rows, size)]

    @property
    def output_type(self) -> str:
        """The output type to ask for: tensors, but in families whose tensors may be of another range than [0, 1]."""
        return "pt" if self._family.positive_embeds else "np"

    @property
    def encodes_texts(self) -> bool:
        """Whether texts are encoded here, and not by the pipeline's own call."""
        return bool(self._family.positive_embeds)

    def uncached_texts(self, rows: Sequence[ImageRow]) -> list[TextRequest]:
        """The texts of rows of one shape that would have to be encoded before the rows are drawn."""
        if not rows or not self.encodes_texts:
            return []
        under = self._activate_text_loras(rows[0])
        negatives = (
            [row.parameters.negative_prompt for row in rows]
            if self._uses_negative_prompt(rows[0])
            else []
        )
        prompts = self._positive.uncached([row.parameters.prompt for row in rows], under)
        return [
            *((self._positive, text, under) for text in prompts),
            *(
                (self._negative, text, under)
                for text in (self._negative.uncached(negatives, under) if negatives else [])
            ),
        ]

    def activate_loras(self, row: ImageRow) -> None:
        """Put the row's LoRAs in force in what the pipeline runs once it has its inputs."""
        if self._loras is not None:
            self._loras.activate(row.parameters.loras, texts=False)
            if not self.encodes_texts:
                self._loras.activate(row.parameters.loras, texts=True)

    def text_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """The prompts as embeddings where the family is known, else as text."""
        prompts = [row.parameters.prompt for row in rows]
        negatives = [row.parameters.negative_prompt for row in rows]
        if not self._family.positive_embeds:
            plain: PipelineKwargs = {"prompt": prompts}
            return plain | (
                {"negative_prompt": negatives}
                if any(negatives) and self.accepts("negative_prompt")
                else {}
            )
        # A text alone needs no padding, and runs without a mask.
        length = self._family.pad_to_tokens if len(rows) > 1 else None
        inputs: PipelineKwargs = (
            {"negative_prompt": None} if self.accepts("negative_prompt") else {}
        )
        if length is not None:
            inputs["max_sequence_length"] = length
        under = self._activate_text_loras(rows[0])
        inputs |= self._embeds_kwargs(
            self._family.positive_embeds,
            (self._positive.get(text, under) for text in prompts),
            length,
        )
        if self._uses_negative_prompt(rows[0]):
            negative = (self._negative.get(text, under) for text in negatives)
            inputs |= self._embeds_kwargs(self._family.negative_embeds, negative, length)
        return inputs

    def noise_kwargs(self, rows: Sequence[ImageRow]) -> PipelineKwargs:
        """A generator on the CPU for each image, and first noise drawn from it in float32.

        So neither the device nor the dtype nor a neighbour enters into it.
        """
        if not self._family.positive_embeds:  # one image at a time
            torch.manual_seed(
                rows[0].parameters.seed
            )  # what is drawn without a generator follows from the row too
            return {
                "generator": _make_generator(rows[0])
            }  # which every pipeline takes: some take no list of one
        generators = [_make_generator(row) for row in rows]
        if rows[0].parameters.source_image is not None:
            return {"generator": generators}  # with a picture, the pipeline mixes the noise with it
        shape = self._latent_shape(rows[0])
        drawn = torch.stack(
            [torch.randn(shape, generator=each, dtype=torch.float32) for each in generators]
        )
        if self._family.latent_layout == "packed":
            drawn = self._pipe._pack_latents(drawn, *drawn.shape)
        dtype = (
            torch.float32 if self._family.float32_latents else denoiser_network(self._pipe).dtype
        )
        return {"generator": generators, "latents": drawn.to(self._pipe.device, dtype)}

    def settings_kwargs(self, row: ImageRow) -> PipelineKwargs:
        """The size, steps and guidance of a batch, by the names that the pipeline has for them."""
        pixels = row.parameters
        named: PipelineKwargs = {
            "width": pixels.width,
            "height": pixels.height,
            "num_inference_steps": pixels.steps,
            self._family.guidance_argument: pixels.guidance,
            "use_resolution_binning": False,  # it would draw another size, and stretch that to the one asked for
        }
        if (
            pixels.steps != 2
        ):  # SanaSprint has a time between its two steps, and refuses other numbers with it
            named["intermediate_timesteps"] = None
        return {name: value for name, value in named.items() if self.accepts(name)}

    def after_step(self, check: Callable[[], None]) -> PipelineKwargs:
        """Arguments by which `check` is called after each step; none where the pipeline tells of no steps."""
        if self.accepts("callback_on_step_end"):
            return {"callback_on_step_end": partial(_after_step, check)}
        if self.accepts("callback"):  # PixArt's
            return {"callback": lambda _step, _time, _latents: check()}
        return {}

    def _latent_shape(self, row: ImageRow) -> tuple[int, int, int]:
        channels, factor = (
            denoiser_network(self._pipe).config.in_channels,
            self._pipe.vae_scale_factor,
        )
        height, width = row.parameters.height // factor, row.parameters.width // factor
        if self._family.latent_layout == "packed":
            return channels // 4, height, width
        fold = 2 if self._family.latent_layout == "folded" else 1
        return channels, height // fold, width // fold

    def _activate_text_loras(self, row: ImageRow) -> str | None:
        """Put the row's LoRAs in force in what encodes texts, and say which of them change it."""
        return (
            None if self._loras is None else self._loras.activate(row.parameters.loras, texts=True)
        )

    def _uses_negative_prompt(self, row: ImageRow) -> bool:
        return self._family.uses_guidance(row.parameters.guidance)

    def _embeds_kwargs(
        self, names: EmbeddingIndices, each: Iterable[PromptEmbeds], length: int | None
    ) -> PipelineKwargs:
        tensors = stack_embeds(list(each), length)
        return dict(
            zip(names, map(list, tensors) if self._family.embeds_as_list else tensors, strict=True)
        )


def _after_step(
    check: Callable[[], None],
    _pipe: diffusers.DiffusionPipeline,
    _step: int,
    _time: object,
    tensors: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    check()
    return tensors


def _make_generator(row: ImageRow) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(row.parameters.seed)
