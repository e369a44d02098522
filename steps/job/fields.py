"""What a setting may hold: text, and numbers that are no yes or no; and what a group of settings is."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")


def _reject_bool(value: T) -> T:
    # Python counts True as 1, and YAML reads `on` and `yes` as True.
    if isinstance(value, bool):
        raise ValueError("is true or false; write a number")  # noqa: TRY004  # pydantic wants a ValueError
    return value


def _reject_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("has a NUL character; remove it")
    return text


Integer = Annotated[int, BeforeValidator(_reject_bool)]
Number = Annotated[float, BeforeValidator(_reject_bool)]
Share = Annotated[Number, Field(ge=0, le=1)]
PositiveInteger = Annotated[Integer, Field(ge=1)]
OBJECT_NAME_PATTERN = (
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"  # Kubernetes' rule for names of most objects
)
ObjectName = Annotated[str, Field(pattern=f"^{OBJECT_NAME_PATTERN}$")]
NonEmptyText = Annotated[str, Field(min_length=1), AfterValidator(_reject_nul)]


class Settings(BaseModel):
    """Settings that refuse unknown keys and cannot change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
