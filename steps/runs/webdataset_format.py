"""The format `webdataset`: a part is a tar of its images, and an index that commits it.

A sample of the tar is an image, its image row as JSON, and its prompt as text. The last member is
the index itself, under a name that readers of WebDataset skip: a tar that a killed writer left
without its index is committed from that member, and nothing is drawn again.
"""

import tarfile
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.output import Encoding, file_suffix, is_lossless
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.integrity import CheckResult, check_failure, check_image_bytes
from imagekiln.steps.runs.keys import index_key, tar_key
from imagekiln.steps.runs.parts import (
    ImageRecord,
    Part,
    PartOutcomes,
    commit_part,
    emptied_outcome,
    image_records,
    index_to_parquet,
    is_to_be_emptied,
    join_outcome,
    outcome_table,
    parse_part_index,
)
from imagekiln.steps.runs.sidecar import sidecar_lines
from imagekiln.steps.runs.tables import damage_error
from imagekiln.steps.storage.store import Store

INDEX_MEMBER = "__index__"
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)
NO_HEADER = bytes(tarfile.BLOCKSIZE)  # at the end of the archive
MEMBER_MODE = 0o644


@dataclass(frozen=True, slots=True)
class PackedTar:
    """A part as a tar and its index."""

    part: Part
    content: bytes
    index: bytes
    lossless: bool

    def commit(self, store: Store) -> bool:
        """Write the tar, then its index: that of another pod's tar, where one already exists."""
        part = self.part
        index = self.index
        if not store.create(tar_key(part.key), self.content):
            index = _read_index_member(store, part, lossless=self.lossless)
        return commit_part(store, part.key, part.rows, index)


@dataclass(frozen=True, slots=True)
class WebDatasetFormat:
    """Parts as tars, each with an index."""

    encoding: Encoding
    has_image_files: ClassVar[bool] = False

    def commit_key(self, shard_number: int, part_number: int) -> str:
        """The key of the index."""
        return index_key(shard_number, part_number)

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedTar:
        """Pack a part's images, in any order."""
        ordered = sorted(images, key=lambda image: image.index_in_part)
        contents = [image.content for image in ordered]
        return self._pack(part, outcome_table(ordered, part.added), contents)

    def _pack(self, part: Part, outcome: pa.Table, contents: Sequence[bytes | None]) -> PackedTar:
        table = join_outcome(part.rows, outcome)
        samples = build_samples(table, contents, self._suffixes(table))
        offsets = list(_content_offsets(samples))
        index = index_to_parquet(part.rows, outcome, offsets)
        return PackedTar(
            part=part,
            content=_build_tar(samples, index),
            index=index,
            lossless=is_lossless(self.encoding),
        )

    def recover(self, store: Store, part: Part) -> bool:
        """Commit the index in a tar that was stored; False where there is no tar."""
        if not store.exists(tar_key(part.key)):
            return False
        index = _read_index_member(store, part, lossless=is_lossless(self.encoding))
        commit_part(store, part.key, part.rows, index)
        return True

    def object_keys(self, part: Part) -> list[str]:
        """The tar, for each image."""
        return [tar_key(part.key)] * part.rows.num_rows

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read tar and index, and decode each image."""
        key = tar_key(part.key)
        where = store.uri_of(key)
        images = part.rows.num_rows
        try:
            index = store.read(part.key)
            outcomes = parse_part_index(index, part, store.uri_of(part.key))
            tar = store.read(key)
        except BadInput as error:
            return check_failure(error, images)

        result = CheckResult(images)
        lossless = is_lossless(self.encoding)
        for record, content in _iter_images(outcomes, tar):
            result += check_image_bytes(record, content, where, lossless=lossless)

        # The rest of the tar follows from its index: a tar built again differs where this one does.
        contents = _image_contents(outcomes, tar)
        samples = build_samples(outcomes.table, contents, self._suffixes(outcomes.table))
        if _build_tar(samples, index) != tar:
            result += check_failure(f"{where}: differs from its index")
        return result

    def empty(self, store: Store, part: Part, image_ids: Container[str]) -> bool:
        """Replace the tar without the bytes of the images with these ids, then the index."""
        key = tar_key(part.key)
        if not store.exists(key):
            return False
        tar = store.read(key)
        index = _extract_index(tar, store.uri_of(key))
        outcomes = parse_part_index(index, part, store.uri_of(key))
        is_emptied = is_to_be_emptied(outcomes.table, image_ids)
        if is_emptied:
            outcome = emptied_outcome(outcomes.table, image_ids, part.added)
            ids = part.rows["image_id"].to_pylist()
            contents = [
                None if image_id in image_ids else content
                for image_id, content in zip(ids, _image_contents(outcomes, tar), strict=True)
            ]
            packed = self._pack(part, outcome, contents)
            store.replace(key, packed.content)
            index = packed.index
        # The tar has an index of its own: that beside it may be older, or not committed at all.
        if store.exists(part.key) and store.read(part.key) != index:
            store.replace(part.key, index)
            return True
        return is_emptied

    def has_leftovers(
        self,
        store: Store,  # noqa: ARG002  # as in every format
        part: Part,  # noqa: ARG002
        index_in_part: int,  # noqa: ARG002
    ) -> bool:
        """False: all of an image is in the tars."""
        return False

    def metadata_tables(
        self,
        manifest: pa.Table,  # noqa: ARG002  # as in every format
    ) -> Iterator[tuple[str, pa.Table]]:
        """None: readers find everything in the tars."""
        return iter(())

    def _suffixes(self, rows: pa.Table) -> list[str]:
        return [file_suffix(self.encoding)] * rows.num_rows


def _read_index_member(store: Store, part: Part, *, lossless: bool) -> bytes:
    """The index in a stored tar, after its images were checked.

    Raises BadInput where the tar belongs to another plan, or is damaged.
    """
    key = tar_key(part.key)
    where = store.uri_of(key)
    tar = store.read(key)
    index = _extract_index(tar, where)
    outcomes = parse_part_index(index, part, where)
    for record, content in _iter_images(outcomes, tar):
        result = check_image_bytes(record, content, where, lossless=lossless)
        if result.error_count:
            raise BadInput(f"{result.errors[0]}. Delete the tar, and run the shard again.")
    return index


def _extract_index(tar: bytes, where: str) -> bytes:
    try:
        for member in iter_members(tar):
            if member.name == INDEX_MEMBER:
                return tar[member.content : member.content + member.size]
    except ValueError as error:
        raise damage_error(where, error) from error
    raise damage_error(where, ValueError(f"it has no {INDEX_MEMBER}"))


def _iter_images(outcomes: PartOutcomes, tar: bytes) -> Iterator[tuple[ImageRecord, bytes]]:
    records = image_records(outcomes.table)
    contents = _image_contents(outcomes, tar)
    for record, content in zip(records, contents, strict=True):
        if content is not None:
            yield record, content


def _image_contents(outcomes: PartOutcomes, tar: bytes) -> list[bytes | None]:
    offsets = outcomes.offsets.to_pylist()
    sizes = outcomes.table["byte_size"].to_pylist()
    contents: list[bytes | None] = []
    for offset, size in zip(offsets, sizes, strict=True):
        if offset is None:
            contents.append(None)
        else:
            end = offset + (size or 0)
            contents.append(tar[offset:end])
    return contents


def build_samples(
    table: pa.Table, contents: Sequence[bytes | None], suffixes: Sequence[str]
) -> list[bytes | None]:
    """The members of each image, its bytes first. None without an image: readers expect one."""
    image_ids = table["image_id"].to_pylist()
    prompts = table["prompt"].to_pylist()
    lines = sidecar_lines(table)
    samples: list[bytes | None] = []
    columns = zip(image_ids, suffixes, prompts, lines, contents, strict=True)
    for image_id, suffix, prompt, line, content in columns:
        if content is None:
            samples.append(None)
            continue
        members = [
            _tar_member(f"{image_id}{suffix}", content),
            _tar_member(f"{image_id}.json", line),
            _tar_member(f"{image_id}.txt", prompt.encode()),
        ]
        samples.append(b"".join(members))
    return samples


def _content_offsets(samples: Sequence[bytes | None]) -> Iterator[int | None]:
    """The offset of each image in the tar: after the header of the first member of its sample."""
    position = tarfile.BLOCKSIZE
    for sample in samples:
        yield None if sample is None else position
        position += len(sample or b"")


def _build_tar(samples: Sequence[bytes | None], index: bytes) -> bytes:
    members = [
        *filter(None, samples),
        _tar_member(INDEX_MEMBER, index),
        END_OF_ARCHIVE,
    ]
    return b"".join(members)


def _tar_member(name: str, content: bytes) -> bytes:
    """One file of a tar, the same on every machine: it has neither a time nor an owner."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = MEMBER_MODE
    header = info.tobuf(tarfile.USTAR_FORMAT)
    padding = bytes(-len(content) % tarfile.BLOCKSIZE)
    return header + content + padding


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file in a tar: its name, and where its header begins, its bytes, and the next header."""

    name: str
    start: int
    content: int
    size: int
    end: int


def iter_members(tar: bytes) -> Iterator[TarMember]:
    """The files in a tar, in order.

    Raises ValueError where it is cut off, or has a member that is no plain file.
    """
    start = 0
    while (header := tar[start : start + tarfile.BLOCKSIZE]) != NO_HEADER:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(f"it is no whole tar: {error}") from error

        content = start + tarfile.BLOCKSIZE
        if info.type != tarfile.REGTYPE or not 0 <= info.size <= len(tar) - content:
            raise ValueError("it has a member that is no whole file")
        blocks = -(-info.size // tarfile.BLOCKSIZE)
        end = content + blocks * tarfile.BLOCKSIZE
        yield TarMember(info.name, start, content, info.size, end)
        start = end
