"""What a job says of the metadata in its images: how much of it leaves, and who signs it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from imagekiln.steps.values import NonEmptyText, Settings

MetadataLevel = Annotated[
    Literal["all", "mark", "none"],
    Field(description="all: prompt, settings, and that it is made by AI; mark: only that it is; none: nothing."),
]


def _reject_inline_key(text: str) -> str:
    # What stands in a job stands in plan.json, which others may read.
    if "-----BEGIN" in text:
        raise ValueError("holds the key or certificate itself; write the name of a file, or env:NAME")
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
