"""The small networks that a job puts on top of its model: where the files of each are."""

from typing import Annotated

from pydantic import Field

from imagekiln.steps.values import Settings, Text

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
AdapterName = Annotated[str, Field(pattern=rf"^{NAME}$", description="At most 64 letters, digits, dots, - and _.")]


class Lora(Settings):
    """One LoRA: a change of the model's weights, in one safetensors file."""

    id: Text = Field(description="A safetensors file, a folder that holds one, or a hub id such as org/name.")
    revision: str | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="The commit of a hub id, 40 hexadecimal digits."
    )
    weight_name: Text | None = Field(None, description="The file in the folder or at the hub id.")
