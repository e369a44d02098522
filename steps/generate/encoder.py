"""Encode images to files with their hashes, and judge them by gates and the user's checks."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import Lock

import numpy as np
import numpy.typing as npt

from imagekiln.steps.checks import ImageSpec, Verdict
from imagekiln.steps.imaging.c2pa import C2paSigner
from imagekiln.steps.imaging.codecs import (
    NO_METADATA,
    EmbeddedMetadata,
    encode_image,
    hash_pixels,
)
from imagekiln.steps.imaging.measures import measure_image
from imagekiln.steps.imaging.metadata import AI_XMP_PACKET, MAX_COMMENT_UNITS
from imagekiln.steps.job.gates import (
    LOW_CONTRAST,
    MAX_SATURATION,
    OVER_SATURATED,
    GateSettings,
    UserCheckGate,
)
from imagekiln.steps.job.output import Encoding, MetadataLevel, file_suffix
from imagekiln.steps.job.scores import AnyScore
from imagekiln.steps.job.user_checks import import_check
from imagekiln.steps.runs.image import (
    FORGOTTEN_STATUS,
    DrawnImage,
    EncodedImage,
    ImageParameters,
    ImageQuality,
    ImageRow,
    ScoreValue,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.webui_text import ModelLabel, format_parameters, model_label

MAX_REASON_CHARS = 500
ImageArray = npt.NDArray[np.uint8]
FLAT_ERROR = "every pixel has the same color"


def encode_drawn_image(
    image: DrawnImage,
    encoding: Encoding,
    metadata: EmbeddedMetadata = NO_METADATA,
    sign: Callable[[bytes], bytes] | None = None,
) -> EncodedImage:
    """Encode and hash one image. An image of a single color gets the status `blank`."""
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
    """Mark an image of a single color as blank, before a pass hides it."""
    rgb = image.rgb
    if rgb is None or image.status != "ok" or not (rgb == rgb[0, 0]).all():
        return image
    return replace(image, rgb=None, status="blank", error=FLAT_ERROR)


class OutputEncoder:
    """Encodes and judges images by the settings of a plan. Thread-safe."""

    def __init__(self, plan: Plan, forgotten: Iterable[str] = ()) -> None:
        """Prepare the plan's encoding and checks. Images with `forgotten` ids are not stored."""
        job = plan.job
        self._encoding = job.encoding
        self._metadata = job.metadata
        self._model = model_label(plan)
        self._sign = None if job.c2pa is None else C2paSigner(job.c2pa, job.encoding)
        self._gates = QualityGates(job.gates)
        self._scores = job.scores
        self._forgotten = frozenset(forgotten)

    def __call__(self, image: DrawnImage, row: ImageRow) -> EncodedImage:
        """Encode and judge the image of a row."""
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
    """Build the metadata of a row's file. In a JPEG, long prompts are cut to fit its segment."""
    text = None
    if level == "all":
        max_units = MAX_COMMENT_UNITS if encoding.kind == "jpeg" else None
        text = format_parameters(row.parameters, model, max_units)
    return EmbeddedMetadata(text, None if level == "none" else AI_XMP_PACKET)


class QualityGates:
    """The gates that judge one image at a time. Thread-safe."""

    def __init__(self, gates: GateSettings) -> None:
        """Import the user's checks. Raises BadInput if one cannot be imported."""
        self._gates = gates
        self._checks = [UserCheck(check) for check in gates.checks]

    def __call__(
        self, rgb: ImageArray, row: ImageRow, score_marks: Mapping[str, str] | None = None
    ) -> ImageQuality:
        """Judge RGB uint8 (height, width, 3). `score_marks` has the reasons of failed scores."""
        measures = measure_image(rgb)
        failed = []
        if measures.contrast < self._gates.low_contrast.below:
            failed.append(LOW_CONTRAST)
        if measures.saturation > MAX_SATURATION:
            failed.append(OVER_SATURATED)

        height, width = rgb.shape[:2]  # passes may have changed the size
        spec = replace(to_image_spec(row), width=width, height=height)
        reasons = []
        for check in self._checks:
            verdict = check(rgb, spec)
            if not verdict.ok:
                failed.append(check.name)
                reasons.append(format_verdict(check.name, verdict.reason))
        for name, mark in (score_marks or {}).items():
            failed.append(name)
            reasons.append(format_verdict(name, mark))
        return ImageQuality(tuple(failed), "; ".join(reasons) or None, measures)


class UserCheck:
    """A user's check function, called by one thread at a time. Its errors become verdicts."""

    def __init__(self, check: UserCheckGate) -> None:
        """Import the function. Raises BadInput if that fails."""
        self.name = check.name
        self._function = import_check(check)
        self._lock = Lock()

    def __call__(self, image: ImageArray, spec: ImageSpec) -> Verdict:
        """Judge RGB uint8 (height, width, 3). Raises the errors of `explain_device`."""
        try:
            with self._lock:
                return _to_verdict(self._function(read_only_view(image), spec))
        except Exception as error:  # a user's code may raise anything
            # Imported only here, since torch takes seconds to import.
            from imagekiln.steps.generate.diffusion.device import explain_device

            if failure := explain_device(f"the check {self.name}", error):
                raise failure from error
            return Verdict(False, f"the check failed: {type(error).__name__}: {error}")


def marking_scores(
    values: Mapping[str, ScoreValue], scores: Mapping[str, AnyScore]
) -> dict[str, str]:
    """Return the names of the scores that mark an image, each with its reason."""
    marks = {}
    for name, score in values.items():
        if score.value is None:
            marks[name] = score.reason or ""
        elif scores[name].marks(score.value):
            marks[name] = f"{score.value:g}"
    return marks


def format_verdict(name: str, reason: object) -> str:
    """Format a reason for storage: shortened, without lone surrogates, which Parquet refuses."""
    reason = str(reason)[:MAX_REASON_CHARS].encode(errors="replace").decode()
    return f"{name}: {reason}" if reason else name


def read_only_view(image: ImageArray) -> ImageArray:
    """Return a view of the image that a user's function cannot change."""
    view = image.view()
    view.flags.writeable = False
    return view


def _to_verdict(result: object) -> Verdict:
    match result:
        case Verdict():
            return result
        case None:
            return Verdict(True)
        case bool() | np.bool():
            return Verdict(bool(result))
        case _:
            raise TypeError(f"it returned {type(result).__name__}, not Verdict, bool or None")


def to_image_spec(row: ImageRow) -> ImageSpec:
    """Convert an image row to the spec that checks receive."""
    parameters = {name: getattr(row.parameters, name) for name in ImageParameters.__slots__}
    return ImageSpec(image_id=row.image_id, id=row.id, image_index=row.image_index, **parameters)
