"""Drawn images become files, with the hashes by which anybody can check them later."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from imagekiln.steps.generate.quality import QualityGates, marking_scores
from imagekiln.steps.imaging.c2pa import C2paSigner
from imagekiln.steps.imaging.codecs import (
    NO_METADATA,
    EmbeddedMetadata,
    encode_image,
    hash_pixels,
)
from imagekiln.steps.imaging.metadata import AI_XMP_PACKET, MAX_COMMENT_UNITS
from imagekiln.steps.job.output import Encoding, MetadataLevel, file_suffix
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, DrawnImage, EncodedImage, ImageRow
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.webui_text import ModelLabel, format_parameters, model_label

FLAT_ERROR = "every pixel has the same color"


def encode_drawn_image(
    image: DrawnImage,
    encoding: Encoding,
    metadata: EmbeddedMetadata = NO_METADATA,
    sign: Callable[[bytes], bytes] | None = None,
) -> EncodedImage:
    """Encode and hash one image.

    An image of a single flat color is `blank`: no prompt asks for it.
    """
    image = mark_flat(image)
    if image.rgb is None or image.status != "ok":
        return EncodedImage(image.index_in_part, image.status, image.error)
    content = encode_image(image.rgb, encoding, metadata)
    if sign is not None:
        content = sign(content)
    return EncodedImage(
        image.index_in_part,
        "ok",
        content=content,
        sha256=hashlib.sha256(content).hexdigest(),
        pixels_sha256=hash_pixels(image.rgb),
        suffix=file_suffix(encoding),
    )


def mark_flat(image: DrawnImage) -> DrawnImage:
    """The image; where it is of a single color, which a pass might hide, as a blank one."""
    rgb = image.rgb
    if rgb is None or image.status != "ok" or not (rgb == rgb[0, 0]).all():
        return image
    return replace(image, rgb=None, status="blank", error=FLAT_ERROR)


class OutputEncoder:
    """Encodes and judges images as a plan asks. May be called from several threads at once."""

    def __init__(self, plan: Plan, forgotten: Iterable[str] = ()) -> None:
        """`forgotten` are the ids of images that were taken down: of them, nothing is stored.

        Raises BadInput where the signer's files or a user's check cannot be loaded.
        """
        job = plan.job
        self._encoding = job.encoding
        self._metadata = job.metadata
        self._model = model_label(plan)
        self._sign = None if job.c2pa is None else C2paSigner(job.c2pa, job.encoding)
        self._gates = QualityGates(job.gates)
        self._scores = job.scores
        self._forgotten = frozenset(forgotten)

    def __call__(self, image: DrawnImage, row: ImageRow) -> EncodedImage:
        """The image of this row as it will be stored."""
        if row.image_id in self._forgotten:
            return EncodedImage(image.index_in_part, FORGOTTEN_STATUS)
        metadata = build_image_metadata(row, self._model, self._encoding, self._metadata)
        encoded = encode_drawn_image(image, self._encoding, metadata, self._sign)
        encoded = replace(
            encoded,
            scores={name: score.value for name, score in image.scores.items()},
            candidate_rank=image.candidate_rank,
            captions=image.captions,
        )
        if encoded.status != "ok" or image.rgb is None:
            return encoded
        marks = marking_scores(image.scores, self._scores)
        return replace(encoded, quality=self._gates(image.rgb, row, marks))


def build_image_metadata(
    row: ImageRow, model: ModelLabel, encoding: Encoding, level: MetadataLevel
) -> EmbeddedMetadata:
    """What the file of this row says of itself.

    A JPEG cuts prompts too long for its one segment.
    """
    text = None
    if level == "all":
        max_units = MAX_COMMENT_UNITS if encoding.kind == "jpeg" else None
        text = format_parameters(row.parameters, model, max_units)
    return EmbeddedMetadata(text, None if level == "none" else AI_XMP_PACKET)
