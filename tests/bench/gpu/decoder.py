"""Section `decoder`: the VAE alone, by attention and images at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from diffusers.models.attention_processor import AttnProcessor

from tests.bench.contenders import peak_memory
from tests.bench.gpu.networks import Untyped, decode_flops, make_vae, vae_latents
from tests.bench.gpu.session import Session
from tests.bench.gpu.switches import Way
from tests.bench.timing import call_seconds, median_seconds, release_memory

SECONDS_PER_VARIANT = 10.0
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
        chunks = torch.split(latents, images)
        pixels = [self.whole(chunk) for chunk in chunks]
        return torch.cat(pixels)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to decode, and the batch sizes to measure it with."""

    name: str
    batches: tuple[int, ...]
    decode: Decode


def measure_decoder(session: Session) -> None:
    """Milliseconds an image, share of the limit, and peak memory of each variant."""
    vae = make_vae(session.model, session.placement)
    decoder = Decoder(vae, decode_flops(session.model, session.work.side))
    decoder.vae.to(memory_format=torch.channels_last)
    _measure_compiled(session, decoder)
    _measure_eager(session, decoder)
    del vae, decoder
    release_memory()


def _measure_compiled(session: Session, decoder: Decoder) -> None:
    """Measure what jobs run first: compiled, one image at a time."""
    shipped = Variant("compiled, one at a time", (8,), partial(decoder.in_chunks, images=1))
    together = Variant("compiled", (4,), decoder.whole)
    for attention in ("fused", "matmul"):
        if attention == "matmul":
            decoder.vae.set_attn_processor(AttnProcessor())
        with Way("whole-det").applied(decoder.vae.decoder, inductor=session.on_cuda):
            for variant in (shipped, together):
                named = replace(variant, name=f"{variant.name}, attention {attention}")
                _measure(session, decoder, named)


def _measure_eager(session: Session, decoder: Decoder) -> None:
    """Measure both sides of 2**31 elements: at 1024 x 1024, eight images are beyond it."""
    _measure(session, decoder, Variant("eager, attention matmul", (1, 7, 8), decoder.whole))


def _measure(session: Session, decoder: Decoder, variant: Variant) -> None:
    for batch in variant.batches:
        label = f"decoder, {variant.name}, batch {batch}"
        if not session.has_time_for(label, SECONDS_PER_VARIANT):
            return
        try:
            _measure_batch(session, decoder, variant, batch)
        except Exception as error:  # noqa: BLE001  # the other variants are still worth measuring
            session.report.note(f"{label}: {str(error)[:200]}")
        release_memory()


def _measure_batch(session: Session, decoder: Decoder, variant: Variant, batch: int) -> None:
    latents = vae_latents(decoder.vae, session.work.side, batch, session.placement)
    decode = partial(variant.decode, latents)
    first = call_seconds(decode)
    seconds = median_seconds(decode, seconds=0.7, max_calls=8) / batch
    flops_share = decoder.flops / seconds / session.limit
    peak_bytes = peak_memory() or 0
    session.report.figure(
        "decoder.image",
        1000 * seconds,
        "ms",
        variant=variant.name,
        batch=batch,
        share_percent=100 * flops_share,
        first_seconds=first,
        peak_gib=peak_bytes / 2**30,
    )
