"""What a run's plan wants of every image: its encoding, what it says of itself, who signs it, and who judges it."""

from dataclasses import replace

from imagekiln.steps import exif, parameters, xmp
from imagekiln.steps.codecs import Notes
from imagekiln.steps.encode import Encoded, Picture, encode
from imagekiln.steps.encodings import Encoding
from imagekiln.steps.judge import Judge
from imagekiln.steps.metadata import Metadata
from imagekiln.steps.parameters import Model
from imagekiln.steps.plan import Plan
from imagekiln.steps.rows import ImageRow
from imagekiln.steps.signature import Signer


class Encoder:
    """Encodes and judges pictures as a plan wants it. May be called from several threads at once."""

    def __init__(self, plan: Plan) -> None:
        """Raises BadInput where what the signature or a check of the user's needs is not there."""
        job = plan.job
        self._encoding, self._metadata = job.encoding, job.metadata
        self._model = parameters.of(plan)
        self._sign = None if job.c2pa is None else Signer(job.c2pa, job.encoding)
        self._judge = Judge(job.gates)

    def __call__(self, picture: Picture, row: ImageRow) -> Encoded:
        """The picture of this row, as it will be stored."""
        said = notes(row, self._model, self._encoding, self._metadata)
        image = encode(picture, self._encoding, said, self._sign)
        if image.status != "ok" or picture.rgb is None:
            return image
        return replace(image, quality=self._judge(picture.rgb, row))


def notes(row: ImageRow, model: Model, encoding: Encoding, metadata: Metadata) -> Notes:
    """What an image of this row says of itself. In a JPEG, prompts too long for its one segment are cut."""
    most = exif.MOST_UNITS if encoding.kind == "jpeg" else None
    text = parameters.text(row.pixels, model, most) if metadata == "all" else None
    return Notes(text, None if metadata == "none" else xmp.PACKET)
