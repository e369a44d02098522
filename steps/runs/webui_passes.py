"""Passes in the text of an image, by the names that web UIs have for enlarging and drawing over.

`Size` is that in which an image was drawn, as web UIs read it: with the seed, it gives the noise. A
pass that draws over is their high-resolution fix, with the upscaler before it. An upscaler alone is
their postprocessing. `Passes` and `Final size` are for people.
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
        passes = []
        for name, settings in self.sizes.passes.items():
            model = self.models.get(name, "")
            if alters_pixels(settings):
                passes.append(f"{name} ({settings.kind} {model}".rstrip() + ")")
        return {
            **self._known_settings(drawn, steps),
            "Passes": "; ".join(passes),
            "Final size": f"{width}x{height}",
        }

    def _known_settings(self, drawn: Size, steps: int) -> dict[str, str]:
        """Of the first pass that draws over, or else of upscalers, which are all there is."""
        upscaler = RESIZED_BY
        sizes = self.sizes.sizes_by_pass(drawn)
        for (name, settings), (width, height) in zip(self.sizes.passes.items(), sizes, strict=True):
            if isinstance(settings, UpscalePass):
                upscaler = self.models[name]
            elif isinstance(settings, RefinePass):
                fix = {
                    "Denoising strength": f"{settings.strength:g}",
                    "Hires steps": str(settings.steps or steps),
                    "Hires upscaler": upscaler,
                }
                factor = width / drawn[0]
                if height == drawn[1] * factor:
                    return {**fix, "Hires upscale": f"{factor:g}"}
                return {**fix, "Hires resize": f"{width}x{height}"}
        factor = self.sizes.final(drawn)[0] / drawn[0]
        return {"Postprocess upscale by": f"{factor:g}", "Postprocess upscaler": upscaler}
