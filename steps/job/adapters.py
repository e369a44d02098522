"""The small networks that a job puts on top of its model: where the files of each are."""

from typing import Annotated, ClassVar

from pydantic import Field

from imagekiln.steps.job.fields import NonEmptyText, Number, Settings

ADAPTER_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
SUBFOLDER_PATTERN = rf"^({ADAPTER_NAME_PATTERN}(/{ADAPTER_NAME_PATTERN})*)?$"
AdapterName = Annotated[
    str,
    Field(
        pattern=rf"^{ADAPTER_NAME_PATTERN}$",
        description="At most 64 letters, digits, dots, - and _.",
    ),
]


class LoraSettings(Settings):
    """One LoRA: a change of the model's weights, in one safetensors file."""

    id: NonEmptyText = Field(
        description="A safetensors file, a folder that holds one, or a hub id such as org/name."
    )
    revision: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{40}$",
        description="The commit of a hub id, 40 hexadecimal digits.",
    )
    weight_name: NonEmptyText | None = Field(
        None, description="The file in the folder or at the hub id."
    )


class ControlNetSettings(Settings):
    """A ControlNet, which draws by a row's control_image."""

    setting_path: ClassVar[str] = "model.controlnet"
    weight_patterns: ClassVar[tuple[str, ...]] = ("*.safetensors",)
    id: NonEmptyText = Field(description="A local folder, or a hub id such as org/name.")
    revision: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{40}$",
        description="The commit of a hub id, 40 hexadecimal digits.",
    )
    scale: Number = Field(1.0, gt=0, le=2, description="How strongly a control_image counts.")


class IpAdapterSettings(Settings):
    """An IP-Adapter, which draws in the manner of a row's reference_image."""

    setting_path: ClassVar[str] = "model.ip_adapter"
    id: NonEmptyText = Field(description="A local folder, or a hub id such as org/name.")
    revision: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{40}$",
        description="The commit of a hub id, 40 hexadecimal digits.",
    )
    subfolder: str = Field(
        "", pattern=SUBFOLDER_PATTERN, description="Where in it the adapter's file is."
    )
    weight_name: str = Field(
        pattern=rf"^{ADAPTER_NAME_PATTERN}\.safetensors$", description="The adapter's file."
    )
    image_encoder: str = Field(
        "image_encoder",
        pattern=SUBFOLDER_PATTERN,
        description="Where in it the image encoder's folder is.",
    )
    scale: Number = Field(1.0, gt=0, le=1, description="How strongly a reference_image counts.")

    @property
    def weight_patterns(self) -> tuple[str, ...]:
        """The files that must be there."""
        folder = f"{self.subfolder}/" if self.subfolder else ""
        return f"{folder}{self.weight_name}", f"{self.image_encoder}/*.safetensors"
