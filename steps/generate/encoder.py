"""Pixels become bytes, with the hashes by which anybody can check them later."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from imagekiln.steps.generate.quality import QualityGates
from imagekiln.steps.imaging.c2pa import C2paSigner
from imagekiln.steps.imaging.codecs import NO_METADATA, EmbeddedMetadata, encode_image, hash_pixels
from imagekiln.steps.imaging.metadata import AI_XMP_PACKET, MAX_COMMENT_UNITS
from imagekiln.steps.job.output import Encoding, MetadataLevel, file_suffix
from imagekiln.steps.runs.image import DrawnImage, EncodedImage, ImageRow
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.webui_text import ModelLabel, format_parameters, model_label


def encode_drawn_image(
    picture: DrawnImage,
    encoding: Encoding,
    notes: EmbeddedMetadata = NO_METADATA,
    sign: Callable[[bytes], bytes] | None = None,
) -> EncodedImage:
    """Encode and hash one picture. One flat colour is `blank`: no model was asked for it."""
    if picture.rgb is None or picture.status != "ok":
        return EncodedImage(picture.index_in_part, picture.status, picture.error)
    if not np.ptp(picture.rgb.reshape(-1, 3), axis=0).any():
        return EncodedImage(picture.index_in_part, "blank", "every pixel has the same colour")
    content = encode_image(picture.rgb, encoding, notes)
    content = sign(content) if sign else content
    digest = hashlib.sha256(content).hexdigest()
    return EncodedImage(
        picture.index_in_part,
        "ok",
        None,
        content,
        digest,
        hash_pixels(picture.rgb),
        file_suffix(encoding),
    )


class OutputEncoder:
    """Encodes and judges pictures as a plan wants it. May be called from several threads at once."""

    def __init__(self, plan: Plan) -> None:
        """Raises BadInput where what the signature or a check of the user's needs is not there."""
        job = plan.job
        self._encoding, self._metadata = job.encoding, job.metadata
        self._model = model_label(plan)
        self._sign = None if job.c2pa is None else C2paSigner(job.c2pa, job.encoding)
        self._judge = QualityGates(job.gates)

    def __call__(self, picture: DrawnImage, row: ImageRow) -> EncodedImage:
        """The picture of this row, as it will be stored."""
        said = build_image_metadata(row, self._model, self._encoding, self._metadata)
        image = encode_drawn_image(picture, self._encoding, said, self._sign)
        if image.status != "ok" or picture.rgb is None:
            return image
        return replace(image, quality=self._judge(picture.rgb, row))


def build_image_metadata(
    row: ImageRow, model: ModelLabel, encoding: Encoding, metadata: MetadataLevel
) -> EmbeddedMetadata:
    """What an image of this row says of itself. In a JPEG, prompts too long for its one segment are cut."""
    most = MAX_COMMENT_UNITS if encoding.kind == "jpeg" else None
    text = format_parameters(row.parameters, model, most) if metadata == "all" else None
    return EmbeddedMetadata(text, None if metadata == "none" else AI_XMP_PACKET)
