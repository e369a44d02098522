"""The format `files`: each image in a file of its own, with its JSON beside it, and an index for each part.

An image is written before its JSON, and that before the index. Each says what is there of the one before, whoever wrote
it: two pods that made different bytes of one image, or one that was killed in between, leave nothing that disagrees.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import decode_image, hash_pixels
from imagekiln.steps.job.output import Encoding, file_suffix, is_lossless
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import IMAGES_PREFIX, folder_metadata_key, image_key
from imagekiln.steps.runs.parts import (
    Part,
    commit_part,
    index_to_parquet,
    join_outcome,
    outcome_table,
    parse_part_index,
)
from imagekiln.steps.runs.readback import CheckResult, PartRow, check_failure, check_image_bytes
from imagekiln.steps.runs.sidecar import sidecar_lines
from imagekiln.steps.runs.tables import (
    DAMAGE_ERRORS,
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    OUTCOME_SCHEMA,
    damage_error,
)
from imagekiln.steps.storage.store import Store

IO_THREADS = 8
SIDECAR_SUFFIX = ".json"
FILE_NAME_COLUMN = "file_name"


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """A part's images, ready to be committed."""

    part: Part
    images: Sequence[EncodedImage]
    encoding: Encoding

    def commit(self, store: Store) -> None:
        """Write the images, then what is told of each, then the index of what is there."""
        with ThreadPoolExecutor(IO_THREADS) as pool:
            there = list(pool.map(lambda image: self._write_image(store, image), self.images))
            lines = list(sidecar_lines(join_outcome(self.part.rows, outcome_table(there))))
            outcome = pa.concat_tables(
                pool.map(lambda image, line: self._write_sidecar(store, image, line), there, lines)
            )
        _commit_index(store, self.part, outcome)

    def _write_image(self, store: Store, image: EncodedImage) -> EncodedImage:
        """The image as it is there: this one, or that of another pod."""
        key = image_key(self.part.key, image.index_in_part, file_suffix(self.encoding))
        if image.content is None or store.create(key, image.content):
            return image
        content = store.read(key)
        if content == image.content:
            return image
        return _with_stored_content(image, content, is_lossless(self.encoding), store.uri_of(key))

    def _write_sidecar(self, store: Store, image: EncodedImage, line: bytes) -> pa.Table:
        """What became of an image, as it stands beside it: written now, or by another pod."""
        key = image_key(self.part.key, image.index_in_part, SIDECAR_SUFFIX)
        found = _parse_sidecar(
            line if store.create(key, line) else store.read(key),
            self.part,
            image.index_in_part,
            store.uri_of(key),
        )
        if image.sha256 and found["sha256"][0].as_py() not in (None, image.sha256):
            raise BadInput(
                f"{store.uri_of(key)}: tells of another image than lies beside it. Delete both, and run again."
            )
        return found


@dataclass(frozen=True, slots=True)
class FilesFormat:
    """Parts as files."""

    encoding: Encoding

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedFiles:
        """The part with these images."""
        return PackedFiles(
            part, sorted(images, key=lambda image: image.index_in_part), self.encoding
        )

    def recover(self, store: Store, part: Part) -> bool:
        """Commit the index of images that are all told of, and there, already; False where one is not."""
        keys = [image_key(part.key, place, SIDECAR_SUFFIX) for place in range(part.rows.num_rows)]
        with ThreadPoolExecutor(IO_THREADS) as pool:
            if not store.exists(keys[0]) or not all(pool.map(store.exists, keys)):
                return False
            lines = pool.map(store.read, keys)
            told = [
                _parse_sidecar(line, part, place, store.uri_of(keys[place]))
                for place, line in enumerate(lines)
            ]
            outcome = pa.concat_tables(told)
            made = zip(self.object_keys(part), outcome["size"].to_pylist(), strict=True)
            # One that was removed, as damaged ones are, is to be drawn again.
            if not all(pool.map(store.exists, [image for image, size in made if size is not None])):
                return False
        _commit_index(store, part, outcome)
        return True

    def object_keys(self, part: Part) -> list[str]:
        """The file of each image."""
        return [
            image_key(part.key, place, file_suffix(self.encoding))
            for place in range(part.rows.num_rows)
        ]

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read the index and every file, and decode each image. Raises TryAgain where storage fails."""
        images = part.rows.num_rows
        try:
            index = parse_part_index(store.read(part.key), part, store.uri_of(part.key))
        except BadInput as error:
            return check_failure(error, images)
        lines, places = sidecar_lines(index.table), self.object_keys(part)
        files = list(zip(range(images), index.rows, places, lines, strict=True))
        with ThreadPoolExecutor(IO_THREADS) as pool:
            exact = is_lossless(self.encoding)
            checked = pool.map(lambda each: _check_image(store, part, exact, *each), files)
            return sum(checked, CheckResult(images))


def imagefolder_metadata(manifest: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """What Hugging Face's `imagefolder` reads beside images: for each folder, its images that are ok, by file name."""
    here = pc.and_(
        pc.equal(manifest["status"], "ok"), pc.starts_with(manifest["part"], IMAGES_PREFIX)
    )
    ok = manifest.filter(here)  # what a later round made lies in its own folder
    files = [PurePosixPath(part) for part in ok["part"].to_pylist()]
    # It takes every text whose name ends so for an image to open, even one that a row carries.
    kept = ok.select(
        [field.name for field in ok.schema if FILE_NAME_COLUMN not in str(field)]
    ).drop_columns([*LOCATION_SCHEMA.names, *NEAR_DUPLICATE_SCHEMA.names])
    named = kept.add_column(
        0, FILE_NAME_COLUMN, pa.array([file.name for file in files], pa.string())
    )
    for folder in dict.fromkeys(file.parent for file in files):
        yield (
            folder_metadata_key(str(folder)),
            named.filter(pa.array([file.parent == folder for file in files])),
        )


def _check_image(
    store: Store, part: Part, exact: bool, place: int, row: PartRow, key: str, line: bytes
) -> CheckResult:
    """Compare an image, and what stands beside it, with the index."""
    beside = image_key(part.key, place, SIDECAR_SUFFIX)
    try:
        checked = (
            check_image_bytes(row, store.read(key), store.uri_of(key), exact)
            if row["status"] == "ok"
            else CheckResult()
        )
        return (
            checked
            if store.read(beside) == line
            else checked + check_failure(f"{store.uri_of(beside)}: differs from its index")
        )
    except BadInput as error:
        return check_failure(error)


def _with_stored_content(
    image: EncodedImage, content: bytes, exact: bool, where: str
) -> EncodedImage:
    """The image with the bytes that another pod wrote of it. Raises BadInput where they are no such image."""
    try:
        rgb = decode_image(content)
    except DAMAGE_ERRORS as error:
        raise damage_error(where, error) from error
    # A lossy file does not tell what was drawn; that pod drew the same image.
    pixels = hash_pixels(rgb) if exact else image.pixels_sha256
    return replace(
        image, content=content, sha256=hashlib.sha256(content).hexdigest(), pixels_sha256=pixels
    )


def _parse_sidecar(line: bytes, part: Part, place: int, where: str) -> pa.Table:
    """What the JSON beside an image says. Raises BadInput where it is of another plan, or damaged."""
    try:
        told = json.loads(line)
        found = pa.Table.from_pylist(
            [{name: told[name] for name in OUTCOME_SCHEMA.names}], OUTCOME_SCHEMA
        )
        if told["image_id"] == part.rows["image_id"][place].as_py():
            return found
    except (KeyError, TypeError, *DAMAGE_ERRORS) as error:
        raise damage_error(where, error) from error
    raise BadInput(f"{where}: is of an image of another plan. Choose another run_id or output.")


def _commit_index(store: Store, part: Part, outcome: pa.Table) -> None:
    offsets = [None if size is None else 0 for size in outcome["size"].to_pylist()]
    commit_part(store, part.key, part.rows, index_to_parquet(part.rows, outcome, offsets))
