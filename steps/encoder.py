"""What a run's plan wants of every image: its encoding, what it says of itself, who signs it, and who judges it."""

from dataclasses import replace

from imagekiln.steps import exif, parameters, xmp
from imagekiln.steps.codecs import EmbeddedMetadata
from imagekiln.steps.encode import DrawnImage, EncodedImage, encode_drawn_image
from imagekiln.steps.encodings import Encoding
from imagekiln.steps.judge import QualityGates
from imagekiln.steps.metadata import MetadataLevel
from imagekiln.steps.parameters import ModelLabel
from imagekiln.steps.plan import Plan
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.signature import C2paSigner


class OutputEncoder:
    """Encodes and judges pictures as a plan wants it. May be called from several threads at once."""

    def __init__(self, plan: Plan) -> None:
        """Raises BadInput where what the signature or a check of the user's needs is not there."""
        job = plan.job
        self._encoding, self._metadata = job.encoding, job.metadata
        self._model = parameters.model_label(plan)
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
    most = exif.MAX_COMMENT_UNITS if encoding.kind == "jpeg" else None
    text = parameters.format_parameters(row.parameters, model, most) if metadata == "all" else None
    return EmbeddedMetadata(text, None if metadata == "none" else xmp.AI_XMP_PACKET)
