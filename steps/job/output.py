"""Settings of image files and exports: encoding, quality, metadata and signature."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from imagekiln.steps.job.fields import Integer, Location, NonEmptyText, Settings


def _read_digits(value: object) -> object:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


QualityLevel = Annotated[Integer, Field(ge=1, le=100)]


class Png(Settings):
    """PNG, which is lossless and supported everywhere."""

    kind: Literal["png"] = "png"


class Jpeg(Settings):
    """JPEG, which is small, fast and supported everywhere, with a small loss."""

    kind: Literal["jpeg"] = "jpeg"
    quality: QualityLevel = Field(
        default=92, description="1 is smallest, 100 is closest to what was drawn."
    )
    subsampling: Annotated[Literal[444, 422, 420], BeforeValidator(_read_digits)] = Field(
        default=444, description="444 keeps colors sharp, 420 is smaller."
    )


class Webp(Settings):
    """WebP, which is smaller than JPEG and slower to encode."""

    kind: Literal["webp"] = "webp"
    quality: QualityLevel = Field(
        default=90,
        description="1 is smallest, 100 is closest to what was drawn; ignored when lossless.",
    )
    lossless: bool = Field(default=False, description="Every pixel as drawn.")


def _encoding_kind(value: object) -> str:
    """Return the kind of an encoding, by default PNG."""
    if isinstance(value, dict):
        return str(value.get("kind", "png"))
    return str(getattr(value, "kind", "png"))


Encoding = Annotated[
    Annotated[Png, Tag("png")] | Annotated[Jpeg, Tag("jpeg")] | Annotated[Webp, Tag("webp")],
    Discriminator(_encoding_kind),
]
FILE_SUFFIXES = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
# Maximum side in pixels, if the file format has a limit.
MAX_SIDES = {"jpeg": 65_535, "webp": 16_383}


def file_suffix(encoding: Encoding) -> str:
    """Return the file suffix with its dot, such as `.jpg`."""
    return FILE_SUFFIXES[encoding.kind]


def mime_type(encoding: Encoding) -> str:
    """Return the media type, such as `image/jpeg`."""
    return f"image/{encoding.kind}"


def describe_encoding(encoding: Encoding) -> str:
    """Describe an encoding, such as `JPEG, quality 92`."""
    kind = "WebP" if encoding.kind == "webp" else encoding.kind.upper()
    if isinstance(encoding, Png) or is_lossless(encoding):
        return f"{kind}, lossless"
    return f"{kind}, quality {encoding.quality}"


def is_lossless(encoding: Encoding) -> bool:
    """Return whether the encoding is lossless."""
    return isinstance(encoding, Png) or (isinstance(encoding, Webp) and encoding.lossless)


MetadataLevel = Annotated[
    Literal["all", "mark", "none"],
    Field(
        description=(
            "all embeds the prompt, the settings and that AI made the image; mark only that; "
            "none nothing."
        )
    ),
]


def _reject_inline_key(text: str) -> str:
    # All settings of a job are in plan.json, which others may read.
    if "-----BEGIN" in text:
        raise ValueError(
            "contains the key or certificate itself; write the path of a file, or env:NAME"
        )
    return text


SecretReference = Annotated[NonEmptyText, AfterValidator(_reject_inline_key)]


class C2paSettings(Settings):
    """Certificate and key for signing images. Needs the extra `c2pa`."""

    certificate: SecretReference = Field(
        default="env:IMAGEKILN_C2PA_CERTIFICATE",
        description=(
            "A PEM file with the chain, the signer's certificate first; or env:NAME, the variable "
            "that holds it."
        ),
    )
    key: SecretReference = Field(
        default="env:IMAGEKILN_C2PA_KEY",
        description="A PEM file with the private key; or env:NAME, the variable that holds it.",
    )


ExportFormat = Literal["parquet", "arrow", "webdataset", "files"]
MAX_EXPORTS = 8
MIN_FILE_BYTES = 10**6
# A file is built in memory, and uploaded to S3 in one request of at most 5 GiB.
MAX_FILE_BYTES = 4 * 10**9


class RunExport(Settings):
    """An export of all finished runs under the output. Each further run is added to it."""

    to: Location = Field(description="The folder or URI of the export.")
    format: ExportFormat = "parquet"
    file_size: Annotated[ByteSize, Field(ge=MIN_FILE_BYTES, le=MAX_FILE_BYTES)] | None = Field(
        default=None, description="The most that a file has, such as 1GB."
    )
    partition_by: NonEmptyText | None = Field(
        default=None, description="The column whose values become folders."
    )
    columns: tuple[NonEmptyText, ...] | None = Field(
        default=None, description="The columns of the export; if absent, all."
    )
    triplets: bool = Field(
        default=False,
        description="Adds the input images of each row: input_image, edit_prompt, edited_image.",
    )

    @model_validator(mode="after")
    def _require_files_with_a_size(self) -> "RunExport":
        if self.format == "files" and self.file_size is not None:
            raise ValueError(
                "has file_size and format: files, which has a file for each image; remove file_size"
            )
        if self.format == "files" and self.triplets:
            raise ValueError("has triplets and format: files; choose another format")
        return self


def check_exports(exports: Sequence[RunExport], output: str) -> None:
    """Raise ValueError if two exports, or an export and the output, have the same folder."""
    used = {output.rstrip("/"): "output"}
    for index, settings in enumerate(exports):
        name = f"export[{index}].to"
        folder = settings.to.rstrip("/")
        if folder in used:
            raise ValueError(f"has {name} and {used[folder]} in one folder; change one of them")
        used[folder] = name
