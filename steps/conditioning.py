"""What a pipeline is told of a batch: its text, encoded once for each distinct prompt, and its noise."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence

import diffusers
import torch

from imagekiln.steps.rows import ImageRow

Inputs = dict[str, object]
REMEMBERED_TEXTS = 256  # images of one prompt are neighbours; SDXL takes 0.3 MB a text


class TextCache:
    """The embeddings of the latest texts. Texts are encoded one by one, so a bad one harms no other."""

    def __init__(self, encode: Callable[[str], tuple[torch.Tensor, ...]]) -> None:
        """Take the function that encodes one text as tensors with a leading axis of 1."""
        self._encode = encode
        self._known: OrderedDict[str, tuple[torch.Tensor, ...]] = OrderedDict()

    def stacked(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """The embeddings of a batch of texts, each with a leading axis of the batch."""
        each = [self._one(text) for text in texts]
        return [torch.cat(tensors) for tensors in zip(*each, strict=True)]

    def _one(self, text: str) -> tuple[torch.Tensor, ...]:
        if text not in self._known:
            self._known[text] = self._encode(text)
        self._known.move_to_end(text)
        while len(self._known) > REMEMBERED_TEXTS:
            self._known.popitem(last=False)
        return self._known[text]


class Conditioning:
    """Turns rows of one shape into a pipeline's arguments."""

    def __init__(self, pipe: diffusers.DiffusionPipeline) -> None:
        """Look at what the pipeline takes."""
        self._pipe = pipe
        self._accepts = set(inspect.signature(pipe.__call__).parameters)
        self._embedded = type(pipe).__name__ in EMBEDS
        self._positive = TextCache(lambda text: self._embed(text, negative=False))
        self._negative = TextCache(lambda text: self._embed(text, negative=True))

    def accepts(self, name: str) -> bool:
        """Whether the pipeline takes an argument of this name."""
        return name in self._accepts

    def text(self, rows: Sequence[ImageRow]) -> Inputs:
        """The prompts as embeddings where the family is known to give the same picture so, else as text."""
        prompts = [row.pixels.prompt for row in rows]
        negatives = [row.pixels.negative_prompt for row in rows]
        if not self._embedded:
            plain: Inputs = {"prompt": prompts}
            return plain | ({"negative_prompt": negatives} if self.accepts("negative_prompt") else {})
        named = EMBEDS[type(self._pipe).__name__]
        inputs: Inputs = dict(zip(named, self._positive.stacked(prompts), strict=True))
        if rows[0].pixels.guidance > 1:
            negative = (f"negative_{name}" for name in named)
            inputs |= dict(zip(negative, self._negative.stacked(negatives), strict=True))
        return inputs

    def noise(self, rows: Sequence[ImageRow]) -> Inputs:
        """A generator on the CPU for each image, and first noise drawn from it in float32.

        So neither the device nor the dtype nor a neighbour enters into it.
        """
        generators = [torch.Generator("cpu").manual_seed(row.pixels.seed) for row in rows]
        if not self._embedded:
            return {"generator": generators}
        shape = self._latent_shape(rows[0])
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float32) for generator in generators]
        latents = torch.stack(drawn).to(self._pipe.device, self._pipe.unet.dtype)
        return {"generator": generators, "latents": latents}

    def _latent_shape(self, row: ImageRow) -> tuple[int, int, int]:
        factor = self._pipe.vae_scale_factor
        return (self._pipe.unet.config.in_channels, row.pixels.height // factor, row.pixels.width // factor)

    def _embed(self, text: str, *, negative: bool) -> tuple[torch.Tensor, ...]:
        kind = type(self._pipe).__name__
        if negative and not text and getattr(self._pipe.config, "force_zeros_for_empty_prompt", False):
            return tuple(torch.zeros_like(tensor) for tensor in self._embed(text, negative=False))
        with torch.no_grad():
            encoded = self._pipe.encode_prompt(
                prompt=[text],
                device=self._pipe.device,
                num_images_per_prompt=1,
                do_classifier_free_guidance=False,
            )
        return tuple(encoded[place] for place in EMBEDS[kind].values())


# The arguments that take embeddings, and where encode_prompt returns each. Families for which the pictures are the
# same, bit for bit, as from the text itself, and whose latents are (channels, height / factor, width / factor).
EMBEDS = {
    "StableDiffusionPipeline": {"prompt_embeds": 0},
    "StableDiffusionXLPipeline": {"prompt_embeds": 0, "pooled_prompt_embeds": 2},
}
