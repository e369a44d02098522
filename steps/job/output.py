"""The kinds of file that an image may become, each with its settings of quality and speed."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from imagekiln.steps.job.fields import Integer, NonEmptyText, Settings

QualityLevel = Annotated[Integer, Field(ge=1, le=100)]


class Png(Settings):
    """Every pixel as it was drawn; read everywhere."""

    kind: Literal["png"] = "png"
    level: Integer = Field(1, ge=0, le=9, description="zlib's level: 1 is fast, 9 is small.")


class ExplicitEncoding(Settings):
    """A kind that must be named, since PNG is what is meant where none is: for the schema, which tells them apart."""

    model_config = ConfigDict(json_schema_extra={"required": ["kind"]})


class Jpeg(ExplicitEncoding):
    """Small, fast and read everywhere; near to what was drawn."""

    kind: Literal["jpeg"] = "jpeg"
    quality: QualityLevel = Field(92, description="1 is small, 100 is near to what was drawn.")
    subsampling: Literal[444, 422, 420] = Field(
        444, description="444 keeps colours sharp, 420 is smaller."
    )
    progressive: bool = Field(False, description="A tenth smaller, and takes half as long again.")


class Webp(ExplicitEncoding):
    """Smaller than JPEG, and slower to write."""

    kind: Literal["webp"] = "webp"
    quality: QualityLevel = Field(
        90, description="1 is small, 100 is near to what was drawn; of no use when lossless."
    )
    lossless: bool = Field(False, description="Every pixel as it was drawn.")
    method: Integer = Field(4, ge=0, le=6, description="0 is fast, 6 is small.")


def _encoding_kind(value: object) -> str:
    """The kind of an encoding: PNG where none is named."""
    return str(
        value.get("kind", "png") if isinstance(value, dict) else getattr(value, "kind", "png")
    )


Encoding = Annotated[
    Annotated[Png, Tag("png")] | Annotated[Jpeg, Tag("jpeg")] | Annotated[Webp, Tag("webp")],
    Discriminator(_encoding_kind),
]
FILE_SUFFIXES = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
MAX_SIDES = {"jpeg": 65_535, "webp": 16_383}  # pixels, where the file has no more room for them


def file_suffix(encoding: Encoding) -> str:
    """How the name of such a file ends, with its dot."""
    return FILE_SUFFIXES[encoding.kind]


def mime_type(encoding: Encoding) -> str:
    """What such a file is called in MIME."""
    return f"image/{encoding.kind}"


def describe_encoding(encoding: Encoding) -> str:
    """The kind and its quality, such as JPEG, quality 92."""
    kind = "WebP" if encoding.kind == "webp" else encoding.kind.upper()
    if isinstance(encoding, Png) or is_lossless(encoding):
        return f"{kind}, lossless"
    return f"{kind}, quality {encoding.quality}"


def is_lossless(encoding: Encoding) -> bool:
    """Whether what is decoded is, pixel by pixel, what was drawn."""
    return isinstance(encoding, Png) or (isinstance(encoding, Webp) and encoding.lossless)


MetadataLevel = Annotated[
    Literal["all", "mark", "none"],
    Field(
        description="all: prompt, settings, and that it is made by AI; mark: only that it is; none: nothing."
    ),
]


def _reject_inline_key(text: str) -> str:
    # What stands in a job stands in plan.json, which others may read.
    if "-----BEGIN" in text:
        raise ValueError(
            "holds the key or certificate itself; write the name of a file, or env:NAME"
        )
    return text


SecretReference = Annotated[NonEmptyText, AfterValidator(_reject_inline_key)]


class C2paSettings(Settings):
    """Where the certificate and the key lie that sign each image. Needs the extra `c2pa`."""

    certificate: SecretReference = Field(
        "env:IMAGEKILN_C2PA_CERTIFICATE",
        description="A PEM file with the chain, the signer's first; or env:NAME, the variable that holds it.",
    )
    key: SecretReference = Field(
        "env:IMAGEKILN_C2PA_KEY",
        description="A PEM file with the private key; or env:NAME, the variable that holds it.",
    )
    algorithm: Literal["es256", "es384", "es512", "ps256", "ps384", "ps512", "ed25519"] = Field(
        "es256", description="As the key's kind asks for."
    )
