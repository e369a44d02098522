"""The settings that make drawing faster: those that leave every picture equal to the eye, and those that do not."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from imagekiln.steps.job.fields import Settings


def _restore_on_off(value: object) -> object:
    # YAML reads a bare on and off as true and false.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class SpeedSettings(Settings):
    """How the model is run. `quantization` changes pictures, so it is in `image_id`."""

    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_restore_on_off)] = Field(
        "auto", description="auto compiles the model where the device is CUDA, on wherever it is."
    )
    compile_cache: Annotated[Literal["output", "off"], BeforeValidator(_restore_on_off)] = Field(
        "output",
        description="Compiled code is kept under the output. Who may write there may run code in the pods.",
    )
    vae: Literal["auto", "whole", "slices", "tiles"] = Field(
        "auto",
        description="How latents are decoded; auto takes less at a time only where memory asks for it.",
    )
    quantization: Literal["none", "fp8"] = Field(
        "none", description="fp8 computes the denoiser in 8 bits: needs such a GPU."
    )

    @model_validator(mode="after")
    def _require_compile_for_fp8(self) -> "SpeedSettings":
        if self.quantization == "fp8" and self.compile == "off":
            raise ValueError(
                "has fp8, which without compiling is slower than bfloat16, and compile: off; remove one"
            )
        return self
