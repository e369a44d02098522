"""Section `decoder`: the VAE alone, by memory layout, attention, batch and chunk."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from diffusers.models.attention_processor import AttnProcessor

from tests.bench.gpu.networks import Untyped, decode_flops, make_vae, vae_latents
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import Way
from tests.bench.gpu.timing import call_seconds, median_seconds, release_memory

CHUNKS = (4, 2, 1)  # images
SECONDS_PER_VARIANT = 20.0
Decode = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A VAE on its device, and what an image costs it."""

    vae: Untyped
    flops: float

    def whole(self, latents: torch.Tensor) -> torch.Tensor:
        """Decode all latents at once."""
        with torch.no_grad():
            pixels: torch.Tensor = self.vae.decode(latents, return_dict=False)[0]
        return pixels

    def in_chunks(self, latents: torch.Tensor, images: int) -> torch.Tensor:
        """Decode the latents of a few images at a time."""
        return torch.cat([self.whole(chunk) for chunk in torch.split(latents, images)])


def measure_decoder(session: Session) -> None:
    """Milliseconds an image, share of the limit, and peak memory of each variant."""
    vae = make_vae(session.model, session.placement)
    decoder = Decoder(vae, decode_flops(session.model, session.work.side))
    _measure(session, decoder, "eager, NCHW", (1, 4, 8), decoder.whole)
    vae.to(memory_format=torch.channels_last)
    _measure(session, decoder, "eager, NHWC", (1, 4, 8), decoder.whole)
    vae.set_attn_processor(AttnProcessor())
    _measure(session, decoder, "eager, NHWC, attention by matmul", (1, 4), decoder.whole)
    with Way("whole-det").applied(vae.decoder, inductor=session.on_cuda):
        _measure(session, decoder, "compiled, attention by matmul", (4, 8), decoder.whole)
        for images in CHUNKS:
            in_chunks = partial(decoder.in_chunks, images=images)
            _measure(session, decoder, f"compiled, chunks of {images}", (8,), in_chunks)
    del vae, decoder
    release_memory()


def _measure(
    session: Session, decoder: Decoder, variant: str, batches: tuple[int, ...], decode: Decode
) -> None:
    for batch in batches:
        if not session.has_time_for(f"decoder, {variant}, batch {batch}", SECONDS_PER_VARIANT):
            return
        try:
            _measure_batch(session, decoder, variant, batch, decode)
        except Exception as error:  # noqa: BLE001  # the other variants are still worth measuring
            session.report.note(f"decoder, {variant}, batch {batch}: {str(error)[:200]}")
        release_memory()


def _measure_batch(
    session: Session, decoder: Decoder, variant: str, batch: int, decode: Decode
) -> None:
    latents = vae_latents(decoder.vae, session.work.side, batch, session.placement)
    first = call_seconds(lambda: decode(latents))
    seconds = median_seconds(lambda: decode(latents), 0.7, 8) / batch
    peak = torch.cuda.max_memory_allocated() / 2**30 if session.on_cuda else 0.0
    session.report.figure(
        "decoder.image",
        1000 * seconds,
        "ms",
        variant=variant,
        batch=batch,
        share_percent=100 * decoder.flops / seconds / session.limit,
        first_seconds=first,
        peak_gib=peak,
    )
