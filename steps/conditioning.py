"""What a pipeline is told of a batch: its text, its noise and its settings, in the way of its family."""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import diffusers
import torch

from imagekiln.steps.embeddings import Embedded, Encoder, TextCache, stacked
from imagekiln.steps.families import Places, family
from imagekiln.steps.lookahead import Wanted
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.pipeline import denoiser
from imagekiln.steps.rows import ImageRow, padded

Inputs = dict[str, object]


class Conditioning:
    """Turns rows of one shape into a pipeline's arguments."""

    def __init__(self, pipe: diffusers.DiffusionPipeline, loras: LoraLayers | None = None) -> None:
        """Look at what the pipeline takes. Its family is that of its class; its LoRAs may change what texts become."""
        self._pipe = pipe
        self._loras = loras
        self._accepts = set(inspect.signature(pipe.__call__).parameters)
        self._family = family(type(pipe).__name__)
        if self._family.positive:
            encoder = Encoder(pipe, self._family)
            self._positive, self._negative = TextCache(encoder.positive), TextCache(encoder.negative)

    def beside(self, sibling: diffusers.DiffusionPipeline) -> "Conditioning":
        """The same, texts and all, for a pipeline with the same components whose call takes other arguments."""
        other = copy.copy(self)
        other._accepts = set(inspect.signature(sibling.__call__).parameters)
        return other

    def accepts(self, name: str) -> bool:
        """Whether the pipeline takes an argument of this name."""
        return name in self._accepts

    def calls(self, rows: Sequence[ImageRow], size: int) -> list[list[ImageRow]]:
        """The batches in which rows of one shape are drawn: one of `size`, or a row at a time where neighbours tell."""
        return [[row] for row in rows] if self._family.alone else [padded(rows, size)]

    @property
    def drawn_as(self) -> str:
        """The output type to ask for: tensors, but in families whose tensors may be of another range than [0, 1]."""
        return "pt" if self._family.positive else "np"

    @property
    def embeds(self) -> bool:
        """Whether texts are encoded here, and not by the pipeline's own call."""
        return bool(self._family.positive)

    def unknown(self, rows: Sequence[ImageRow]) -> list[Wanted]:
        """The texts of rows of one shape that would have to be encoded before the rows are drawn."""
        if not rows or not self.embeds:
            return []
        under = self._under(rows[0])
        negatives = [row.pixels.negative_prompt for row in rows] if self._reads_negative(rows[0]) else []
        prompts = self._positive.unknown([row.pixels.prompt for row in rows], under)
        return [
            *((self._positive, text, under) for text in prompts),
            *(
                (self._negative, text, under)
                for text in (self._negative.unknown(negatives, under) if negatives else [])
            ),
        ]

    def adapt(self, row: ImageRow) -> None:
        """Put the row's LoRAs in force in what the pipeline runs once it has its inputs."""
        if self._loras is not None:
            self._loras.use(row.pixels.loras, texts=False)
            if not self.embeds:
                self._loras.use(row.pixels.loras, texts=True)

    def text(self, rows: Sequence[ImageRow]) -> Inputs:
        """The prompts as embeddings where the family is known, else as text."""
        prompts = [row.pixels.prompt for row in rows]
        negatives = [row.pixels.negative_prompt for row in rows]
        if not self._family.positive:
            plain: Inputs = {"prompt": prompts}
            return plain | (
                {"negative_prompt": negatives} if any(negatives) and self.accepts("negative_prompt") else {}
            )
        # A text alone needs no padding, and runs without a mask.
        length = self._family.padded if len(rows) > 1 else None
        inputs: Inputs = {"negative_prompt": None} if self.accepts("negative_prompt") else {}
        if length is not None:
            inputs["max_sequence_length"] = length
        under = self._under(rows[0])
        inputs |= self._embedded(self._family.positive, (self._positive.of(text, under) for text in prompts), length)
        if self._reads_negative(rows[0]):
            negative = (self._negative.of(text, under) for text in negatives)
            inputs |= self._embedded(self._family.negative, negative, length)
        return inputs

    def noise(self, rows: Sequence[ImageRow]) -> Inputs:
        """A generator on the CPU for each image, and first noise drawn from it in float32.

        So neither the device nor the dtype nor a neighbour enters into it.
        """
        if not self._family.positive:  # one image at a time
            torch.manual_seed(rows[0].pixels.seed)  # what is drawn without a generator follows from the row too
            return {"generator": _generator(rows[0])}  # which every pipeline takes: some take no list of one
        generators = [_generator(row) for row in rows]
        if rows[0].pixels.source_image is not None:
            return {"generator": generators}  # with a picture, the pipeline mixes the noise with it
        shape = self._latent_shape(rows[0])
        drawn = torch.stack([torch.randn(shape, generator=each, dtype=torch.float32) for each in generators])
        if self._family.latents == "packed":
            drawn = self._pipe._pack_latents(drawn, *drawn.shape)
        dtype = torch.float32 if self._family.float32 else denoiser(self._pipe).dtype
        return {"generator": generators, "latents": drawn.to(self._pipe.device, dtype)}

    def settings(self, row: ImageRow) -> Inputs:
        """The size, steps and guidance of a batch, by the names that the pipeline has for them."""
        pixels = row.pixels
        named: Inputs = {
            "width": pixels.width,
            "height": pixels.height,
            "num_inference_steps": pixels.steps,
            self._family.guidance: pixels.guidance,
            "use_resolution_binning": False,  # it would draw another size, and stretch that to the one asked for
        }
        if pixels.steps != 2:  # SanaSprint has a time between its two steps, and refuses other numbers with it
            named["intermediate_timesteps"] = None
        return {name: value for name, value in named.items() if self.accepts(name)}

    def after_step(self, check: Callable[[], None]) -> Inputs:
        """Arguments by which `check` is called after each step; none where the pipeline tells of no steps."""
        if self.accepts("callback_on_step_end"):
            return {"callback_on_step_end": partial(_after_step, check)}
        if self.accepts("callback"):  # PixArt's
            return {"callback": lambda _step, _time, _latents: check()}
        return {}

    def _latent_shape(self, row: ImageRow) -> tuple[int, int, int]:
        channels, factor = denoiser(self._pipe).config.in_channels, self._pipe.vae_scale_factor
        height, width = row.pixels.height // factor, row.pixels.width // factor
        if self._family.latents == "packed":
            return channels // 4, height, width
        fold = 2 if self._family.latents == "folded" else 1
        return channels, height // fold, width // fold

    def _under(self, row: ImageRow) -> str | None:
        """Put the row's LoRAs in force in what encodes texts, and say which of them change it."""
        return None if self._loras is None else self._loras.use(row.pixels.loras, texts=True)

    def _reads_negative(self, row: ImageRow) -> bool:
        return self._family.guided(row.pixels.guidance)

    def _embedded(self, names: Places, each: Iterable[Embedded], length: int | None) -> Inputs:
        tensors = stacked(list(each), length)
        return dict(zip(names, map(list, tensors) if self._family.listed else tensors, strict=True))


def _after_step(
    check: Callable[[], None],
    _pipe: diffusers.DiffusionPipeline,
    _step: int,
    _time: object,
    tensors: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    check()
    return tensors


def _generator(row: ImageRow) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(row.pixels.seed)
