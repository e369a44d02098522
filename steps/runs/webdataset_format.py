"""The format `webdataset`: the images of a part in a tar, each with its prompt and its JSON, and the part's index.

The tar's last member is the index itself, under a name that readers of WebDataset skip. So whoever finds a tar without
its index, left by a pod that was killed, commits what the tar says and draws nothing again.
"""

import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.output import Encoding, file_suffix, is_lossless
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import tar_key
from imagekiln.steps.runs.parts import (
    Part,
    PartIndex,
    commit_part,
    index_to_parquet,
    join_outcome,
    outcome_table,
    parse_part_index,
)
from imagekiln.steps.runs.readback import CheckResult, PartRow, check_failure, check_image_bytes
from imagekiln.steps.runs.sidecar import sidecar_lines
from imagekiln.steps.runs.tables import damage_error
from imagekiln.steps.storage.store import Store

INDEX_MEMBER = "__index__"
END_OF_ARCHIVE = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class PackedTar:
    """A part's tar and index, ready to be committed."""

    part: Part
    content: bytes
    index: bytes
    lossless: bool

    def commit(self, store: Store) -> None:
        """Write the tar, then the index: that of the tar which is there, where another pod made it first."""
        key = tar_key(self.part.key)
        index = (
            self.index
            if store.create(key, self.content)
            else _read_index_member(store, self.part, self.lossless)
        )
        commit_part(store, self.part.key, self.part.rows, index)


@dataclass(frozen=True, slots=True)
class WebDatasetFormat:
    """Parts as tars."""

    encoding: Encoding

    def pack(self, part: Part, images: Sequence[EncodedImage]) -> PackedTar:
        """The part with these images."""
        ordered = sorted(images, key=lambda image: image.index_in_part)
        outcome = outcome_table(ordered)
        samples = list(
            _iter_samples(
                join_outcome(part.rows, outcome),
                [image.content for image in ordered],
                self.encoding,
            )
        )
        index = index_to_parquet(part.rows, outcome, list(_content_offsets(samples)))
        return PackedTar(part, _build_tar(samples, index), index, is_lossless(self.encoding))

    def recover(self, store: Store, part: Part) -> bool:
        """Commit the index of a tar that is there; False where none is."""
        if not store.exists(tar_key(part.key)):
            return False
        commit_part(
            store, part.key, part.rows, _read_index_member(store, part, is_lossless(self.encoding))
        )
        return True

    def object_keys(self, part: Part) -> list[str]:
        """The tar, for each image."""
        return [tar_key(part.key)] * part.rows.num_rows

    def check(self, store: Store, part: Part) -> CheckResult:
        """Read tar and index whole, and decode each image. Raises TryAgain where storage fails."""
        where, images = store.uri_of(tar_key(part.key)), part.rows.num_rows
        try:
            content = store.read(part.key)
            index = parse_part_index(content, part, store.uri_of(part.key))
            tar = store.read(tar_key(part.key))
        except BadInput as error:
            return check_failure(error, images)
        exact = is_lossless(self.encoding)
        checked = sum(
            (check_image_bytes(*each, where, exact) for each in _iter_images(index, tar)),
            CheckResult(images),
        )
        # All else in the tar follows from the index, so one comparison finds whatever differs.
        again = _build_tar(
            list(_iter_samples(index.table, _image_contents(index, tar), self.encoding)), content
        )
        return (
            checked if again == tar else checked + check_failure(f"{where}: differs from its index")
        )


def _read_index_member(store: Store, part: Part, exact: bool) -> bytes:
    """The index in the tar that is there. Raises BadInput where it is of another plan, or the tar is damaged."""
    where, content = store.uri_of(tar_key(part.key)), store.read(tar_key(part.key))
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            member = tar.extractfile(INDEX_MEMBER)
            found = member.read() if member else b""
    except (tarfile.TarError, KeyError, OSError) as error:
        raise damage_error(where, error) from error
    index = parse_part_index(found, part, where)
    for checked in (
        check_image_bytes(*each, where, exact) for each in _iter_images(index, content)
    ):
        if checked.error_count:
            raise BadInput(f"{checked.errors[0]}. Delete the tar, and it is made again.")
    return found


def _iter_images(index: PartIndex, tar: bytes) -> Iterator[tuple[PartRow, bytes]]:
    for row, content in zip(index.rows, _image_contents(index, tar), strict=True):
        if content is not None:
            yield row, content


def _image_contents(index: PartIndex, tar: bytes) -> list[bytes | None]:
    places = zip(index.offsets, index.table["size"].to_pylist(), strict=True)
    return [
        None if offset is None else tar[offset : offset + (size or 0)] for offset, size in places
    ]


def _iter_samples(
    told: pa.Table, contents: Sequence[bytes | None], encoding: Encoding
) -> Iterator[bytes | None]:
    """The members of each image, its bytes first. None where there are no bytes: readers take no sample without."""
    texts = zip(
        told["image_id"].to_pylist(),
        told["prompt"].to_pylist(),
        sidecar_lines(told),
        contents,
        strict=True,
    )
    for name, prompt, line, content in texts:
        files = {file_suffix(encoding): content or b"", ".json": line, ".txt": prompt.encode()}
        sample = b"".join(_tar_member(f"{name}{end}", file) for end, file in files.items())
        yield None if content is None else sample


def _content_offsets(samples: Sequence[bytes | None]) -> Iterator[int | None]:
    """Where the bytes of each image begin in the tar: behind the header that its sample begins with."""
    position = tarfile.BLOCKSIZE
    for sample in samples:
        yield None if sample is None else position
        position += len(sample or b"")


def _build_tar(samples: Sequence[bytes | None], index: bytes) -> bytes:
    return b"".join([*filter(None, samples), _tar_member(INDEX_MEMBER, index), END_OF_ARCHIVE])


def _tar_member(name: str, content: bytes) -> bytes:
    """One file of a tar, the same on every machine: of no time and no owner."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)
