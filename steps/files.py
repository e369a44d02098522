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

from imagekiln.steps import indexes, names, parts, readback, sidecar, tables
from imagekiln.steps.codecs import decode
from imagekiln.steps.encode import Encoded, pixels_hash
from imagekiln.steps.encodings import Encoding, is_lossless, suffix
from imagekiln.steps.errors import BadInput
from imagekiln.steps.readback import Checked, bad
from imagekiln.steps.shard import Part
from imagekiln.steps.storage import Store

AT_ONCE = 8
JSON = ".json"
FILE_NAME = "file_name"


@dataclass(frozen=True, slots=True)
class Packed:
    """A part's images, ready to be committed."""

    part: Part
    images: Sequence[Encoded]
    encoding: Encoding

    def commit(self, store: Store) -> None:
        """Write the images, then what is told of each, then the index of what is there."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = list(pool.map(lambda image: self._written(store, image), self.images))
            lines = list(sidecar.texts(parts.told(self.part.rows, parts.outcome(there))))
            outcome = pa.concat_tables(pool.map(lambda image, line: self._told(store, image, line), there, lines))
        _commit(store, self.part, outcome)

    def _written(self, store: Store, image: Encoded) -> Encoded:
        """The image as it is there: this one, or that of another pod."""
        key = names.image(self.part.key, image.place, suffix(self.encoding))
        if image.content is None or store.create(key, image.content):
            return image
        content = store.read(key)
        if content == image.content:
            return image
        return _adopted(image, content, is_lossless(self.encoding), store.at(key))

    def _told(self, store: Store, image: Encoded, line: bytes) -> pa.Table:
        """What became of an image, as it stands beside it: written now, or by another pod."""
        key = names.image(self.part.key, image.place, JSON)
        found = _outcome(line if store.create(key, line) else store.read(key), self.part, image.place, store.at(key))
        if image.sha256 and found["sha256"][0].as_py() not in (None, image.sha256):
            raise BadInput(f"{store.at(key)}: tells of another image than lies beside it. Delete both, and run again.")
        return found


@dataclass(frozen=True, slots=True)
class Files:
    """Parts as files."""

    encoding: Encoding

    def pack(self, part: Part, images: Sequence[Encoded]) -> Packed:
        """The part with these images."""
        return Packed(part, sorted(images, key=lambda image: image.place), self.encoding)

    def adopt(self, store: Store, part: Part) -> bool:
        """Commit the index of images that are all told of, and there, already; False where one is not."""
        keys = [names.image(part.key, place, JSON) for place in range(part.rows.num_rows)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            if not store.exists(keys[0]) or not all(pool.map(store.exists, keys)):
                return False
            lines = pool.map(store.read, keys)
            told = [_outcome(line, part, place, store.at(keys[place])) for place, line in enumerate(lines)]
            outcome = pa.concat_tables(told)
            made = zip(self.places(part), outcome["size"].to_pylist(), strict=True)
            # One that was removed, as damaged ones are, is to be drawn again.
            if not all(pool.map(store.exists, [image for image, size in made if size is not None])):
                return False
        _commit(store, part, outcome)
        return True

    def places(self, part: Part) -> list[str]:
        """The file of each image."""
        return [names.image(part.key, place, suffix(self.encoding)) for place in range(part.rows.num_rows)]

    def check(self, store: Store, part: Part) -> Checked:
        """Read the index and every file, and decode each image. Raises TryAgain where storage fails."""
        images = part.rows.num_rows
        try:
            index = indexes.parse(store.read(part.key), part, store.at(part.key))
        except BadInput as error:
            return bad(error, images)
        lines, places = sidecar.texts(index.told), self.places(part)
        files = list(zip(range(images), index.rows, places, lines, strict=True))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            exact = is_lossless(self.encoding)
            checked = pool.map(lambda each: _image(store, part, exact, *each), files)
            return sum(checked, Checked(images))


def listings(manifest: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """What Hugging Face's `imagefolder` reads beside images: for each folder, its images that are ok, by file name."""
    here = pc.and_(pc.equal(manifest["status"], "ok"), pc.starts_with(manifest["part"], names.IMAGES))
    ok = manifest.filter(here)  # what a later round made lies in its own folder
    files = [PurePosixPath(part) for part in ok["part"].to_pylist()]
    # It takes every text whose name ends so for an image to open, even one that a row carries.
    kept = ok.select([field.name for field in ok.schema if FILE_NAME not in str(field)]).drop_columns(
        [*tables.PLACE.names, *tables.NEAR.names]
    )
    named = kept.add_column(0, FILE_NAME, pa.array([file.name for file in files], pa.string()))
    for folder in dict.fromkeys(file.parent for file in files):
        yield names.listing(str(folder)), named.filter(pa.array([file.parent == folder for file in files]))


def _image(store: Store, part: Part, exact: bool, place: int, row: readback.Row, key: str, line: bytes) -> Checked:
    """Compare an image, and what stands beside it, with the index."""
    beside = names.image(part.key, place, JSON)
    try:
        checked = readback.image(row, store.read(key), store.at(key), exact) if row["status"] == "ok" else Checked()
        return checked if store.read(beside) == line else checked + bad(f"{store.at(beside)}: differs from its index")
    except BadInput as error:
        return bad(error)


def _adopted(image: Encoded, content: bytes, exact: bool, where: str) -> Encoded:
    """The image with the bytes that another pod wrote of it. Raises BadInput where they are no such image."""
    try:
        rgb = decode(content)
    except tables.DAMAGED as error:
        raise tables.damaged(where, error) from error
    # A lossy file does not tell what was drawn; that pod drew the same image.
    pixels = pixels_hash(rgb) if exact else image.pixels_sha256
    return replace(image, content=content, sha256=hashlib.sha256(content).hexdigest(), pixels_sha256=pixels)


def _outcome(line: bytes, part: Part, place: int, where: str) -> pa.Table:
    """What the JSON beside an image says. Raises BadInput where it is of another plan, or damaged."""
    try:
        told = json.loads(line)
        found = pa.Table.from_pylist([{name: told[name] for name in tables.OUTCOME.names}], tables.OUTCOME)
        if told["image_id"] == part.rows["image_id"][place].as_py():
            return found
    except (KeyError, TypeError, *tables.DAMAGED) as error:
        raise tables.damaged(where, error) from error
    raise BadInput(f"{where}: is of an image of another plan. Choose another run_id or output.")


def _commit(store: Store, part: Part, outcome: pa.Table) -> None:
    offsets = [None if size is None else 0 for size in outcome["size"].to_pylist()]
    parts.commit(store, part.key, part.rows, parts.index(part.rows, outcome, offsets))
