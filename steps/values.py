"""What a setting may hold: text, and numbers that are no yes or no; and what a group of settings is."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")


def _no_truth(value: T) -> T:
    # Python counts True as 1, and YAML reads `on` and `yes` as True.
    if isinstance(value, bool):
        raise ValueError("is true or false; write a number")  # noqa: TRY004  # pydantic wants a ValueError
    return value


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a NUL character; remove it")
    return text


Whole = Annotated[int, BeforeValidator(_no_truth)]
Number = Annotated[float, BeforeValidator(_no_truth)]
Share = Annotated[Number, Field(ge=0, le=1)]
Positive = Annotated[Whole, Field(ge=1)]
OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"  # Kubernetes' rule for names of most objects
ObjectName = Annotated[str, Field(pattern=f"^{OBJECT_NAME}$")]
Text = Annotated[str, Field(min_length=1), AfterValidator(_no_nul)]


class Settings(BaseModel):
    """Settings that refuse unknown keys and cannot change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
