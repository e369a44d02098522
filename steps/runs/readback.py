"""Images read back, by the object and the offset that a row in the manifest names.

And if what was written is what was planned and drawn: the result of such checks.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput, Missing, StorageRefused
from imagekiln.steps.imaging.codecs import MAX_DECODED_PIXELS, RGB, decode_image, hash_pixels
from imagekiln.steps.runs.parts import ImageRecord
from imagekiln.steps.runs.tables import DAMAGE_ERRORS, damage_error
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

MAX_LISTED_ERRORS = 10
MAX_LISTED_COMMANDS = 3


def read_image_bytes(store: Store, row: Mapping[str, object]) -> bytes:
    """The stored bytes of an image that is ok.

    Raises BadInput where they are not those that were written: they may be of any file, behind a
    link. Raises Missing, TryAgain too.
    """
    part = row["part"]
    offset = row["byte_offset"]
    size = row["byte_size"]
    if not (isinstance(part, str) and isinstance(offset, int) and isinstance(size, int)):
        raise BadInput(
            f"{store.uri}: the manifest does not say where image {row['image_id']} is. "
            "Aggregate again."
        )
    try:
        with store.open(part) as file:
            file.seek(offset)
            content = file.read(size)
    except Missing as error:
        command = format_command("verify", store.uri)
        raise Missing(
            f"{store.uri_of(part)}: is missing, and images that a commit counts are in it. Restore "
            f"it, or type `{command}`, which says how to generate it again."
        ) from error
    if "sha256" not in row or row["sha256"] == hashlib.sha256(content).hexdigest():
        return content
    raise damage_error(store.uri_of(part), ValueError("an image has other bytes than were written"))


def read_image_pixels(store: Store, row: Mapping[str, object]) -> RGB:
    """The pixels of an image that is ok, RGB uint8 (height, width, 3).

    Raises Missing, TryAgain, or BadInput where the image does not decode.
    """
    return decode_stored_image(store, row, read_image_bytes(store, row))


def decode_stored_image(store: Store, row: Mapping[str, object], content: bytes) -> RGB:
    """The pixels of an image whose bytes were read. Raises BadInput where it does not decode."""
    width = row["width"]
    height = row["height"]
    planned = width * height if isinstance(width, int) and isinstance(height, int) else 0
    try:
        return decode_image(content, most=max(MAX_DECODED_PIXELS, planned))
    except DAMAGE_ERRORS as error:
        raise damage_error(store.uri_of(str(row["part"])), error) from error


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How many images were checked, how many of them are ok and intact, and the bytes of those.

    `errors` holds the first sentences about what is wrong, and `error_count` says how many there
    are, so that memory stays flat for a run in which nothing is right. `commands` are the first
    that generate what is wrong again.
    """

    images: int = 0
    ok: int = 0
    bytes: int = 0
    errors: tuple[str, ...] = ()
    error_count: int = 0
    commands: tuple[str, ...] = ()

    def __add__(self, other: "CheckResult") -> "CheckResult":
        """The result of both checks."""
        commands = dict.fromkeys(self.commands + other.commands)
        return CheckResult(
            images=self.images + other.images,
            ok=self.ok + other.ok,
            bytes=self.bytes + other.bytes,
            errors=(self.errors + other.errors)[:MAX_LISTED_ERRORS],
            error_count=self.error_count + other.error_count,
            commands=tuple(commands)[:MAX_LISTED_COMMANDS],
        )


def check_failure(error: str | BadInput, images: int = 0) -> CheckResult:
    """The result of a check of so many images that ended with this sentence.

    Raises StorageRefused where the error is one: what cannot be read may be right.
    """
    if isinstance(error, StorageRefused):
        raise error
    return CheckResult(images, errors=(str(error).rstrip("."),), error_count=1)


def run_check(check: Callable[[], str | None]) -> CheckResult:
    """The result of a check that returns a sentence or raises BadInput if something is wrong."""
    try:
        error = check()
    except BadInput as bad_input:
        return check_failure(bad_input)
    return CheckResult() if error is None else check_failure(error)


def check_image_bytes(
    record: ImageRecord, content: bytes, where: str, *, lossless: bool
) -> CheckResult:
    """Compare the bytes of an image with its record.

    `lossless` says that the encoding is: then the decoded pixels must be those that were drawn.
    """
    error = _image_error(record, content, lossless=lossless)
    if error is not None:
        return check_failure(f"{where}: image {record.image_id} {error}")
    return CheckResult(ok=1, bytes=len(content))


def _image_error(record: ImageRecord, content: bytes, *, lossless: bool) -> str | None:
    if hashlib.sha256(content).hexdigest() != record.sha256:
        return "has other bytes than were written"
    try:
        rgb = decode_image(content, (record.width, record.height))
    except (OSError, ValueError) as error:
        return f"does not decode ({error_reason(error)})"
    if lossless and hash_pixels(rgb) != record.pixels_sha256:
        return "has other pixels than were drawn"
    return None
