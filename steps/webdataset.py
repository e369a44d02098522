"""The format `webdataset`: the images of a part in a tar, each with its prompt and its JSON, and the part's index.

The tar's last member is the index itself, under a name that readers of WebDataset skip. So whoever finds a tar without
its index, left by a pod that was killed, commits what the tar says and draws nothing again.
"""

import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from imagekiln.steps import indexes, names, parts, readback, sidecar, tables
from imagekiln.steps.encode import Encoded
from imagekiln.steps.encodings import Encoding, is_lossless, suffix
from imagekiln.steps.errors import BadInput
from imagekiln.steps.readback import Checked, bad
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store

INDEX = "__index__"
END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Packed:
    """A part's tar and index, ready to be committed."""

    part: Part
    content: bytes
    index: bytes
    exact: bool

    def commit(self, store: Store) -> None:
        """Write the tar, then the index: that of the tar which is there, where another pod made it first."""
        key = names.tar(self.part.key)
        index = self.index if store.create(key, self.content) else _index_in(store, self.part, self.exact)
        parts.commit(store, self.part.key, self.part.rows, index)


@dataclass(frozen=True, slots=True)
class WebDataset:
    """Parts as tars."""

    encoding: Encoding

    def pack(self, part: Part, images: Sequence[Encoded]) -> Packed:
        """The part with these images."""
        ordered = sorted(images, key=lambda image: image.place)
        outcome = parts.outcome(ordered)
        samples = list(_samples(parts.told(part.rows, outcome), [image.content for image in ordered], self.encoding))
        index = parts.index(part.rows, outcome, list(_offsets(samples)))
        return Packed(part, _tar(samples, index), index, is_lossless(self.encoding))

    def adopt(self, store: Store, part: Part) -> bool:
        """Commit the index of a tar that is there; False where none is."""
        if not store.exists(names.tar(part.key)):
            return False
        parts.commit(store, part.key, part.rows, _index_in(store, part, is_lossless(self.encoding)))
        return True

    def places(self, part: Part) -> list[str]:
        """The tar, for each image."""
        return [names.tar(part.key)] * part.rows.num_rows

    def check(self, store: Store, part: Part) -> Checked:
        """Read tar and index whole, and decode each image. Raises TryAgain where storage fails."""
        where, images = store.at(names.tar(part.key)), part.rows.num_rows
        try:
            content = store.read(part.key)
            index = indexes.parse(content, part, store.at(part.key))
            tar = store.read(names.tar(part.key))
        except BadInput as error:
            return bad(error, images)
        exact = is_lossless(self.encoding)
        checked = sum((readback.image(*each, where, exact) for each in _images(index, tar)), Checked(images))
        # All else in the tar follows from the index, so one comparison finds whatever differs.
        again = _tar(list(_samples(index.told, _contents(index, tar), self.encoding)), content)
        return checked if again == tar else checked + bad(f"{where}: differs from its index")


def _index_in(store: Store, part: Part, exact: bool) -> bytes:
    """The index in the tar that is there. Raises BadInput where it is of another plan, or the tar is damaged."""
    where, content = store.at(names.tar(part.key)), store.read(names.tar(part.key))
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            member = tar.extractfile(INDEX)
            found = member.read() if member else b""
    except (tarfile.TarError, KeyError, OSError) as error:
        raise tables.damaged(where, error) from error
    index = indexes.parse(found, part, where)
    for checked in (readback.image(*each, where, exact) for each in _images(index, content)):
        if checked.wrongs:
            raise BadInput(f"{checked.wrong[0]}. Delete the tar, and it is made again.")
    return found


def _images(index: indexes.Index, tar: bytes) -> Iterator[tuple[readback.Row, bytes]]:
    for row, content in zip(index.rows, _contents(index, tar), strict=True):
        if content is not None:
            yield row, content


def _contents(index: indexes.Index, tar: bytes) -> list[bytes | None]:
    places = zip(index.offsets, index.told["size"].to_pylist(), strict=True)
    return [None if offset is None else tar[offset : offset + (size or 0)] for offset, size in places]


def _samples(told: pa.Table, contents: Sequence[bytes | None], encoding: Encoding) -> Iterator[bytes | None]:
    """The members of each image, its bytes first. None where there are no bytes: readers take no sample without."""
    texts = zip(told["image_id"].to_pylist(), told["prompt"].to_pylist(), sidecar.texts(told), contents, strict=True)
    for name, prompt, line, content in texts:
        files = {suffix(encoding): content or b"", ".json": line, ".txt": prompt.encode()}
        sample = b"".join(_member(f"{name}{end}", file) for end, file in files.items())
        yield None if content is None else sample


def _offsets(samples: Sequence[bytes | None]) -> Iterator[int | None]:
    """Where the bytes of each image begin in the tar: behind the header that its sample begins with."""
    position = tarfile.BLOCKSIZE
    for sample in samples:
        yield None if sample is None else position
        position += len(sample or b"")


def _tar(samples: Sequence[bytes | None], index: bytes) -> bytes:
    return b"".join([*filter(None, samples), _member(INDEX, index), END])


def _member(name: str, content: bytes) -> bytes:
    """One file of a tar, the same on every machine: of no time and no owner."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)
