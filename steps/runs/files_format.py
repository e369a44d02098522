"""The format `files`: each image is a file with a JSON sidecar, and an index commits the part.

An image is written before its sidecar, and all sidecars before the index. Each object describes the
one before as it is stored, whoever wrote it. So neither two pods that drew different bytes of one
image, nor a killed writer, leave objects that disagree. A part whose files and sidecars are all
stored is committed from the sidecars, and nothing is drawn again.

Where candidates compete, two writers may choose others, and sidecars of both have two winners of a
prompt, or none. So who commits the index chooses, and a part is never committed from sidecars.
Those that say something else are replaced before, lest a killed writer leaves them, and after.

Images that were taken down are not to come back by a writer that comes late, or wakes up.
"""

import hashlib
import json
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import PurePosixPath
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.errors import BadInput, Missing, StorageRefused, TryAgain
from imagekiln.steps.imaging.codecs import decode_image, hash_pixels
from imagekiln.steps.job.output import Encoding, file_suffix, is_lossless
from imagekiln.steps.job.scores import RANK_COLUMN
from imagekiln.steps.runs.added_columns import outcome_schema
from imagekiln.steps.runs.image import FORGOTTEN_STATUS, EncodedImage
from imagekiln.steps.runs.integrity import CheckResult, check_failure, check_image_bytes
from imagekiln.steps.runs.keys import IMAGES_PREFIX, folder_metadata_key, image_key, index_key
from imagekiln.steps.runs.parts import (
    ImageRecord,
    Part,
    commit_part,
    emptied_outcome,
    image_records,
    index_to_parquet,
    is_to_be_emptied,
    join_outcome,
    note_committed,
    outcome_table,
    parse_part_index,
)
from imagekiln.steps.runs.sidecar import sidecar_lines
from imagekiln.steps.runs.tables import (
    DAMAGE_ERRORS,
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    damage_error,
)
from imagekiln.steps.storage.store import Store

IO_THREADS = 8
SIDECAR_SUFFIX = ".json"
FILE_NAME_COLUMN = "file_name"


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """A part as files."""

    part: Part
    images: Sequence[EncodedImage]
    encoding: Encoding

    def commit(self, store: Store) -> bool:
        """Write each image and its sidecar, and at last the index of what is stored."""
        part = self.part
        if store.exists(part.key):  # images of it may have been taken down since
            note_committed(store, part.key, part.rows)
            return False
        images, stored = self._write_all(store)
        if _competes(part):
            outcome = outcome_table(images, part.added)
            return _commit_choice(store, part, outcome, stored)
        return _commit_index(store, part, stored)

    def _write_all(self, store: Store) -> tuple[Sequence[EncodedImage], pa.Table]:
        """Write all images and sidecars, unless others did. Returns what is stored of both."""
        part = self.part
        drawn = outcome_table(self.images, part.added)
        table = join_outcome(part.rows, drawn)
        lines = sidecar_lines(table)
        with ThreadPoolExecutor(IO_THREADS) as pool:
            written = pool.map(partial(self._write, store), self.images, lines)
            images, outcomes = zip(*written, strict=True)
        return images, pa.concat_tables(outcomes)

    def _write(
        self, store: Store, image: EncodedImage, line: bytes
    ) -> tuple[EncodedImage, pa.Table]:
        """Write an image and its sidecar, unless others did. Returns what is stored of them."""
        stored = self._write_image(store, image)
        if stored is not image:
            outcome = outcome_table([stored], self.part.added)
            line = _sidecar_line(self.part, image.index_in_part, outcome)
        return stored, self._write_sidecar(store, stored, line)

    def _write_image(self, store: Store, image: EncodedImage) -> EncodedImage:
        """Write an image, unless another pod did. Returns the image that is stored."""
        key = self._file_key(image)
        if image.content is None or store.create(key, image.content):
            return image
        where = store.uri_of(key)
        try:
            content = store.read(key)
        except Missing as error:
            raise TryAgain(
                f"{where}: another process removed it meanwhile. Run the command again."
            ) from error
        if content == image.content:
            return image
        return _with_stored_content(image, content, where, lossless=is_lossless(self.encoding))

    def _write_sidecar(self, store: Store, image: EncodedImage, line: bytes) -> pa.Table:
        """Write a sidecar, unless another pod did. Returns the outcome that is stored."""
        key = image_key(self.part.key, image.index_in_part, SIDECAR_SUFFIX)
        where = store.uri_of(key)
        stored = line if store.create(key, line) else store.read(key)
        outcome = _parse_sidecar(stored, self.part, image.index_in_part, where)
        if image.content is not None and _is_forgotten(outcome):
            with suppress(Missing, StorageRefused):  # `forget`, done again, finds it
                store.remove(self._file_key(image))
        sha256 = outcome["sha256"][0].as_py()
        if image.sha256 is not None and sha256 not in (None, image.sha256):
            raise BadInput(
                f"{where}: describes another image than the file beside it. "
                "Delete both, and run the shard again."
            )
        return outcome

    def _file_key(self, image: EncodedImage) -> str:
        return image_key(self.part.key, image.index_in_part, file_suffix(self.encoding))


@dataclass(frozen=True, slots=True)
class FilesFormat:
    """Parts as files, each with an index."""

    encoding: Encoding
    has_image_files: ClassVar[bool] = True

    def commit_key(self, shard_number: int, part_number: int) -> str:
        """The key of the index."""
        return index_key(shard_number, part_number)

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedFiles:
        """Pack a part's images, in any order."""
        ordered = sorted(images, key=lambda image: image.index_in_part)
        return PackedFiles(part, ordered, self.encoding)

    def recover(self, store: Store, part: Part) -> bool:
        """Commit the index of images that were all stored; False where a file is missing."""
        if _competes(part):
            return False
        sidecars = _image_keys(part, SIDECAR_SUFFIX)
        with ThreadPoolExecutor(IO_THREADS) as pool:
            # Most parts that are missing have no file at all: ask for one before the others.
            if not store.exists(sidecars[0]) or not all(pool.map(store.exists, sidecars)):
                return False
            lines = pool.map(store.read, sidecars)
            outcomes = [
                _parse_sidecar(line, part, index, store.uri_of(sidecars[index]))
                for index, line in enumerate(lines)
            ]
            outcome = pa.concat_tables(outcomes)
            # An image whose file was deleted, as users do with damaged ones, is drawn again.
            has_image = pc.is_valid(outcome["byte_size"]).to_pylist()
            files = compress(self.object_keys(part), has_image)
            if not all(pool.map(store.exists, files)):
                return False
        _commit_index(store, part, outcome)
        return True

    def object_keys(self, part: Part) -> list[str]:
        """The file of each image."""
        return _image_keys(part, file_suffix(self.encoding))

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read the index, every file and every sidecar, and decode each image."""
        images = part.rows.num_rows
        try:
            outcomes = parse_part_index(store.read(part.key), part, store.uri_of(part.key))
        except BadInput as error:
            return check_failure(error, images)
        with ThreadPoolExecutor(IO_THREADS) as pool:
            results = pool.map(
                partial(self._check_file, store),
                image_records(outcomes.table),
                self.object_keys(part),
                _image_keys(part, SIDECAR_SUFFIX),
                sidecar_lines(outcomes.table),
            )
            return sum(results, CheckResult(images))

    def empty(self, store: Store, part: Part, image_ids: Container[str]) -> bool:
        """Replace the sidecars of the images with these ids, remove their files; then the index.

        What an index does not say yet is done again, also once a run was aggregated.
        """
        is_emptied = self._empty_files(store, part, image_ids)
        if not store.exists(part.key):
            return is_emptied
        outcomes = parse_part_index(store.read(part.key), part, store.uri_of(part.key))
        if not is_to_be_emptied(outcomes.table, image_ids):
            return is_emptied
        outcome = emptied_outcome(outcomes.table, image_ids, part.added)
        store.replace(part.key, _index_of(part, outcome))
        return True

    def _empty_files(self, store: Store, part: Part, image_ids: Container[str]) -> bool:
        """Replace sidecars and remove files; whether there was a file of one of these images."""
        is_emptied = False
        nothing = _forgotten_outcome(part)
        files = self.object_keys(part)
        sidecars = _image_keys(part, SIDECAR_SUFFIX)
        ids = part.rows["image_id"].to_pylist()
        for index, image_id in enumerate(ids):
            if image_id not in image_ids:
                continue
            if store.exists(sidecars[index]):
                store.replace(sidecars[index], _sidecar_line(part, index, nothing))
            if store.exists(files[index]):
                store.remove(files[index])
                is_emptied = True
        # It shows these images, and is written again only where others of its folder are left.
        folder = str(PurePosixPath(files[0]).parent)
        if store.exists(folder_metadata_key(folder)):
            store.remove(folder_metadata_key(folder))
        return is_emptied

    def has_leftovers(self, store: Store, part: Part, index_in_part: int) -> bool:
        """Whether the image's file is there, or its sidecar does not say that it is forgotten."""
        if store.exists(image_key(part.key, index_in_part, file_suffix(self.encoding))):
            return True
        sidecar = image_key(part.key, index_in_part, SIDECAR_SUFFIX)
        line = _sidecar_line(part, index_in_part, _forgotten_outcome(part))
        return store.exists(sidecar) and store.read(sidecar) != line

    def metadata_tables(self, manifest: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """What Hugging Face's `imagefolder` reads: for each folder, its images by file name."""
        is_ok = pc.equal(manifest["status"], "ok")
        # The images of a later round lie in the round's own folder, which has its own table.
        is_in_run = pc.starts_with(manifest["part"], IMAGES_PREFIX)
        images = manifest.filter(pc.and_(is_ok, is_in_run))

        keys = images["part"].to_pylist()
        files = [PurePosixPath(key) for key in keys]
        folders = [str(file.parent) for file in files]
        table = _imagefolder_table(images, files)
        for folder in dict.fromkeys(folders):
            is_in_folder = pc.equal(pa.array(folders), folder)
            folder_table = table.filter(is_in_folder)
            yield folder_metadata_key(folder), folder_table

    def _check_file(
        self, store: Store, record: ImageRecord, key: str, sidecar_key: str, line: bytes
    ) -> CheckResult:
        """Compare an image and its sidecar with the index."""
        result = CheckResult()
        try:
            if record.status == "ok":
                result += check_image_bytes(
                    record,
                    store.read(key),
                    store.uri_of(key),
                    lossless=is_lossless(self.encoding),
                )
            if store.read(sidecar_key) != line:
                result += check_failure(f"{store.uri_of(sidecar_key)}: differs from its index")
        except BadInput as error:
            return check_failure(error)
        return result


def _competes(part: Part) -> bool:
    """Whether images of a part are candidates, of which some are chosen."""
    return RANK_COLUMN in outcome_schema(part.added).names


def _choose(outcome: pa.Table, stored: pa.Table) -> pa.Table:
    """The outcome, but for images that were taken down, or of which the stored one says the same.

    Who stored that has measured the file that is stored.
    """
    rank = pc.fill_null(outcome[RANK_COLUMN], 0)
    stored_rank = pc.fill_null(stored[RANK_COLUMN], 0)
    is_same = pc.and_(
        pc.equal(outcome["status"], stored["status"]),
        pc.equal(rank, stored_rank),
    )
    is_forgotten = pc.equal(stored["status"], FORGOTTEN_STATUS)
    is_stored = pc.or_(is_same, is_forgotten)
    rows = pa.array(range(len(outcome)))
    stored_rows = pc.add(rows, len(outcome))
    places = pc.if_else(is_stored, stored_rows, rows)
    return pa.concat_tables([outcome, stored]).take(places)


def _commit_choice(store: Store, part: Part, outcome: pa.Table, stored: pa.Table) -> bool:
    """Commit what this writer chose among candidates, with sidecars that say the same."""
    chosen = _choose(outcome, stored)
    if not chosen.equals(stored) and not store.exists(part.key):
        _set_sidecars(store, part, chosen)
    is_first = _commit_index(store, part, chosen)
    if not is_first:
        content = store.read(part.key)
        index = parse_part_index(content, part, store.uri_of(part.key))
        chosen = index.table.select(chosen.column_names)
    _set_sidecars(store, part, chosen)  # others may have set them meanwhile
    return is_first


def _set_sidecars(store: Store, part: Part, outcome: pa.Table) -> None:
    """Have the sidecars say what was chosen, but those of images that were taken down."""
    keys = _image_keys(part, SIDECAR_SUFFIX)

    def set_sidecar(index: int, line: bytes) -> None:
        key = keys[index]
        stored = store.read(key)
        if stored == line:
            return
        before = _parse_sidecar(stored, part, index, store.uri_of(key))
        if not _is_forgotten(before):
            store.replace(key, line)

    table = join_outcome(part.rows, outcome)
    lines = sidecar_lines(table)
    with ThreadPoolExecutor(IO_THREADS) as pool:
        list(pool.map(set_sidecar, range(len(keys)), lines))


def _is_forgotten(outcome: pa.Table) -> bool:
    """Whether the outcome of one image is that it was taken down."""
    (status,) = outcome["status"].to_pylist()
    return bool(status == FORGOTTEN_STATUS)


def _forgotten_outcome(part: Part) -> pa.Table:
    """The outcome of one image that was taken down."""
    return outcome_table([EncodedImage(0, FORGOTTEN_STATUS)], part.added)


def _sidecar_line(part: Part, index: int, outcome: pa.Table) -> bytes:
    """The sidecar of one image with this outcome."""
    row = part.rows.slice(index, 1)
    table = join_outcome(row, outcome)
    (line,) = sidecar_lines(table)
    return line


def _image_keys(part: Part, suffix: str) -> list[str]:
    indexes = range(part.rows.num_rows)
    return [image_key(part.key, index, suffix) for index in indexes]


def _imagefolder_table(images: pa.Table, files: Sequence[PurePosixPath]) -> pa.Table:
    # `imagefolder` opens the path in every text whose name ends in "file_name", even in a column of
    # the input, and in a field of a struct: the text of a field names those within it.
    omitted = {*LOCATION_SCHEMA.names, *NEAR_DUPLICATE_SCHEMA.names}
    names = [
        field.name
        for field in images.schema
        if field.name not in omitted and FILE_NAME_COLUMN not in str(field)
    ]
    file_names = pa.array([file.name for file in files], pa.string())
    return images.select(names).add_column(0, FILE_NAME_COLUMN, file_names)


def _with_stored_content(
    image: EncodedImage, content: bytes, where: str, *, lossless: bool
) -> EncodedImage:
    """The image with the bytes that another pod stored. Raises BadInput unless they decode."""
    try:
        rgb = decode_image(content)
    except DAMAGE_ERRORS as error:
        raise damage_error(where, error) from error
    # What was drawn does not follow from a lossy file; the other pod drew the same image.
    pixels_sha256 = hash_pixels(rgb) if lossless else image.pixels_sha256
    sha256 = hashlib.sha256(content).hexdigest()
    return replace(image, content=content, sha256=sha256, pixels_sha256=pixels_sha256)


def _parse_sidecar(line: bytes, part: Part, index: int, where: str) -> pa.Table:
    """The outcome in a sidecar. Raises BadInput where it belongs to another plan, or is damaged."""
    try:
        values = json.loads(line)
        image_id = values["image_id"]
        schema = outcome_schema(part.added)
        outcome = {name: values[name] for name in schema.names}
        table = pa.Table.from_pylist([outcome], schema)
    except DAMAGE_ERRORS as error:
        raise damage_error(where, error) from error
    planned_id = part.rows["image_id"][index].as_py()
    if image_id != planned_id:
        raise BadInput(
            f"{where}: describes an image of another plan. Choose another run_id or output."
        )
    return table


def _commit_index(store: Store, part: Part, outcome: pa.Table) -> bool:
    return commit_part(store, part.key, part.rows, _index_of(part, outcome))


def _index_of(part: Part, outcome: pa.Table) -> bytes:
    # Each image begins at the first byte of its file.
    sizes = outcome["byte_size"].to_pylist()
    offsets = [None if size is None else 0 for size in sizes]
    return index_to_parquet(part.rows, outcome, offsets)
