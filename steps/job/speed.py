"""The settings that make drawing faster, whether or not the eye could see a difference."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from imagekiln.steps.job.fields import Settings


def _restore_on_off(value: object) -> object:
    # YAML reads a bare on and off as true and false.
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


class SpeedSettings(Settings):
    """How the model is run. `quantization` changes pixels, so it is part of `image_id`."""

    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_restore_on_off)] = Field(
        default="auto", description="auto compiles the model on CUDA devices only, on always."
    )
    vae: Literal["auto", "whole", "slices", "tiles"] = Field(
        default="auto",
        description="How latents are decoded; auto decodes in pieces only where memory is short.",
    )
    quantization: Literal["none", "fp8"] = Field(
        default="none", description="fp8 computes the denoiser in 8 bits; the GPU must support it."
    )

    @model_validator(mode="after")
    def _require_compile_for_fp8(self) -> "SpeedSettings":
        if self.quantization == "fp8" and self.compile == "off":
            raise ValueError(
                "has quantization: fp8 and compile: off; without compilation, fp8 is slower than "
                "bfloat16, so remove one of them"
            )
        return self
