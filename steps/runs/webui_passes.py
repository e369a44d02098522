"""Passes in the text of an image, by the names that web UIs have for enlarging and drawing over.

`Size` is that in which an image was drawn, as web UIs read it: with the seed, it gives the noise. A
pass that draws over is their high-resolution fix, and the upscaler before it is its upscaler.
Another upscaler is their postprocessing. What has no name there is in `Passes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from imagekiln.steps.job.passes import RefinePass, UpscalePass, alters_pixels
from imagekiln.steps.models.passes import NO_PASSES, PassSizes, Size

RESIZED_BY = "Lanczos"  # where no upscaler does


@dataclass(frozen=True, slots=True)
class PassLabels:
    """The passes of a job, and the names of their models where they have some of their own."""

    sizes: PassSizes = NO_PASSES
    models: Mapping[str, str] = field(default_factory=dict)

    def settings(self, drawn: Size, steps: int) -> dict[str, str]:
        """The settings to write of an image that was drawn in this size, with so many steps."""
        if not self.sizes.alters_images:
            return {}
        width, height = self.sizes.final(drawn)
        return {
            **self._known_settings(drawn, steps),
            "Passes": "; ".join(self._describe_passes()),
            "Final size": f"{width}x{height}",
        }

    def _known_settings(self, drawn: Size, steps: int) -> dict[str, str]:
        """Of the first pass that draws over, or else of upscalers, which are all there is."""
        upscaler = RESIZED_BY
        sizes = self.sizes.sizes_by_pass(drawn)
        for (name, settings), size in zip(self.sizes.passes.items(), sizes, strict=True):
            if isinstance(settings, UpscalePass):
                upscaler = self.models[name]
            elif isinstance(settings, RefinePass):
                fix = _enlargement("Hires upscale", "Hires resize", drawn, size)
                fix["Hires steps"] = str(settings.steps or steps)
                fix["Hires upscaler"] = upscaler
                if name in self.models:
                    fix["Hires checkpoint"] = self.models[name]
                return fix | {"Denoising strength": f"{settings.strength:g}"}
        final = self.sizes.final(drawn)
        enlargement = _enlargement("Postprocess upscale by", "Postprocess upscale to", drawn, final)
        return enlargement | {"Postprocess upscaler": upscaler}

    def _describe_passes(self) -> list[str]:
        described = []
        for name, settings in self.sizes.passes.items():
            if not alters_pixels(settings):
                continue
            facts = [settings.kind]
            if isinstance(settings, RefinePass):
                facts.append(f"strength {settings.strength:g}")
            if name in self.models:
                facts.append(self.models[name])
            described.append(f"{name} ({', '.join(facts)})")
        return described


def _enlargement(by: str, to: str, drawn: Size, size: Size) -> dict[str, str]:
    """From one size to another: by a factor, if both sides have the same, else to the new size."""
    factor = size[0] / drawn[0]
    if size[1] == drawn[1] * factor:
        return {by: f"{factor:g}"}
    return {to: f"{size[0]}x{size[1]}"}
