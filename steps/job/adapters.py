"""Settings of networks that a job adds to its model: LoRAs, ControlNet and IP-Adapter."""

from typing import Annotated, ClassVar

from pydantic import Field

from imagekiln.steps.job.fields import HubReference, Location, NonEmptyText, Number

SHARED_ENCODER_FOLDER = "models"
ADAPTER_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
SUBFOLDER_PATTERN = rf"^({ADAPTER_NAME_PATTERN}(/{ADAPTER_NAME_PATTERN})*)?$"
AdapterName = Annotated[
    str,
    Field(
        pattern=rf"^{ADAPTER_NAME_PATTERN}$",
        description="At most 64 letters, digits, dots, hyphens and underscores.",
    ),
]


class LoraSettings(HubReference):
    """A LoRA in one safetensors file."""

    id: Location = Field(
        description="A safetensors file, a folder that holds one, or a hub id such as org/name."
    )
    weight_name: NonEmptyText | None = Field(
        default=None, description="The file in the folder or at the hub id."
    )


class ControlNetSettings(HubReference):
    """A ControlNet, conditioned on the row's control_image."""

    setting_path: ClassVar[str] = "model.controlnet"
    weight_patterns: ClassVar[tuple[str, ...]] = ("*.safetensors",)

    scale: Number = Field(
        default=1.0, gt=0, le=2, description="How strongly a control_image counts."
    )


class IpAdapterSettings(HubReference):
    """An IP-Adapter, which takes the row's reference image as an image prompt."""

    setting_path: ClassVar[str] = "model.ip_adapter"

    subfolder: str = Field(
        default="", pattern=SUBFOLDER_PATTERN, description="The folder of the adapter's file."
    )
    weight_name: str = Field(
        pattern=rf"^{ADAPTER_NAME_PATTERN}\.safetensors$",
        description="The adapter's file, such as ip-adapter_sdxl.safetensors.",
    )
    scale: Number = Field(
        default=1.0, gt=0, le=1, description="How strongly a reference image counts."
    )

    @property
    def image_encoder(self) -> str:
        """Folder of the image encoder, in the layout of h94/IP-Adapter."""
        # In this layout, adapters of several folders share one ViT-H encoder.
        shares = self.subfolder and "vit-h" in self.weight_name
        folder = SHARED_ENCODER_FOLDER if shares else self.subfolder
        return f"{folder}/image_encoder" if folder else "image_encoder"

    @property
    def weight_patterns(self) -> tuple[str, ...]:
        """Patterns of the files that must exist."""
        adapter = self.weight_name
        if self.subfolder:
            adapter = f"{self.subfolder}/{adapter}"
        return (adapter, f"{self.image_encoder}/*.safetensors")
