"""Types of settings with their bounds, and base classes of settings groups."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic_core import PydanticKnownError

from imagekiln.steps.job.columns import GUIDANCE, STEPS
from imagekiln.steps.runtime.sanitize import holds_credentials

T = TypeVar("T")


def _reject_bool(value: T) -> T:
    # Python counts True as 1, and YAML reads `on` and `yes` as True.
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


def is_unset(value: object) -> bool:
    """Return whether to omit a setting when a job is serialized, to keep run ids stable."""
    return value is None


def require_unique(noun: str, names: Sequence[str]) -> None:
    """Raise ValueError if a name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'has two {noun}s "{name}"; remove or rename one of them')


def _reject_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character; remove it")
    return text


def _reject_credentials(uri: str) -> str:
    if holds_credentials(uri):
        raise ValueError(
            "contains credentials, which plans, logs and workflows would show; set credentials in "
            "the environment, and copy a file that has a signed URL to a disk or a bucket"
        )
    return uri


Integer = Annotated[int, BeforeValidator(_reject_bool)]
Number = Annotated[float, BeforeValidator(_reject_bool)]
# Bounds must precede the validator, or the JSON Schema lacks them.
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_reject_bool)]
PositiveInteger = Annotated[int, Field(ge=1), BeforeValidator(_reject_bool)]
StepCount = Annotated[int, Field(ge=STEPS.lowest, le=STEPS.highest), BeforeValidator(_reject_bool)]
Guidance = Annotated[
    float, Field(ge=GUIDANCE.lowest, le=GUIDANCE.highest), BeforeValidator(_reject_bool)
]
NonEmptyText = Annotated[str, Field(min_length=1), AfterValidator(_reject_nul)]
# A path or URI, or the name of a repository.
Location = Annotated[NonEmptyText, AfterValidator(_reject_credentials)]

# Kubernetes' rule for the names of most objects.
OBJECT_NAME_PATTERN = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
ObjectName = Annotated[str, Field(pattern=f"^{OBJECT_NAME_PATTERN}$")]

# Also the name of a folder, a pod label and part of Argo manifests, so characters are restricted.
RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
RunId = Annotated[str, Field(pattern=RUN_ID_PATTERN)]

# A registry, a path, a tag and a digest; the first and the last two may be missing.
IMAGE_PATTERN = (
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)


def _require_image(text: str) -> str:
    if re.fullmatch(IMAGE_PATTERN, text):
        return text
    raise ValueError(
        f"is {text!r}; write an image such as registry.example.com/imagekiln-gpu:0.1.0, or with "
        "@sha256: and 64 hexadecimal digits at its end"
    )


ImageReference = Annotated[str, AfterValidator(_require_image)]

# No part begins with a dot: the hub's client uses the name as a path.
_REVISION_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}"
REVISION_PATTERN = rf"^{_REVISION_PART}(/{_REVISION_PART}){{0,9}}$"

NO_MODEL_ID = "none"  # the model of jobs that leave it out
Dtype = Literal["float32", "bfloat16", "float16"]


class Settings(BaseModel):
    """Base class of settings groups. They refuse unknown keys and are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _write_kind(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Serialize `kind` even if defaults are omitted."""
        values: dict[str, object] = write(self)
        kind = getattr(self, "kind", None)
        if kind is None or "kind" in values:
            return values
        return {"kind": kind, **values}


class HubReference(Settings):
    """A reference to a local folder, or to a repository on the hub at a revision."""

    id: Location = Field(description="A local folder, or a hub id such as org/name.")
    revision: str | None = Field(
        default=None,
        pattern=REVISION_PATTERN,
        description="The commit, branch or tag of a hub id; if absent, main. "
        "A plan freezes the commit.",
    )


class PipelineSettings(HubReference):
    """A diffusers pipeline, and the precision of its computation."""

    id: Location = Field(
        description="A local folder, a hub id such as org/name, a safetensors file with all of "
        "the model's weights, or bundled:shapes."
    )
    config: Location | None = Field(
        default=None,
        exclude_if=is_unset,
        description="For a model in one file: the folder or hub id of a pipeline of its family, "
        "of which all but the weights is used.",
    )
    dtype: Dtype = "bfloat16"
    variant: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_]+$",
        exclude_if=is_unset,
        description="Which files hold the weights: with fp16, NAME.fp16.safetensors.",
    )
