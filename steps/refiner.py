"""The settings of a refiner: a second model that draws the last steps of each image, as SDXL's does."""

from pydantic import Field

from imagekiln.steps.values import Number, Settings, Text


class Refiner(Settings):
    """Where the refiner lies, and from where on it draws."""

    id: Text = Field(description="A local folder, or a hub id such as org/name.")
    revision: str | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="The commit of a hub model, 40 hexadecimal digits."
    )
    start: Number = Field(0.8, gt=0, lt=1, description="The share of the noise that the model itself takes away first.")
