"""The images of the report: a random sample of those that are ok, and a few of each gate."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.reconcile import ReconciledShard
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.runs.image import CAPTION_SETTINGS, SettingValues
from imagekiln.steps.runs.readback import decode_stored_image, read_image_bytes
from imagekiln.steps.runtime.sanitize import truncate_text
from imagekiln.steps.storage.store import Store

MAX_TEXT_CHARS = 500
MAX_ID_CHARS = 100
MAX_SAMPLES = 96
MAX_SAMPLES_PER_GATE = 6
THUMBNAIL_SIDE = 256  # pixels


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to show. Long texts are truncated."""

    image_id: str
    id: str | None
    input_row: int
    part: str
    byte_offset: int
    byte_size: int
    prompt: str
    width: int
    height: int
    settings: SettingValues = field(default_factory=dict, hash=False)
    marks: tuple[str, ...] = ()
    marks_reason: str | None = None
    contrast: float | None = None
    saturation: float | None = None
    near_duplicate_of: str | None = None
    sha256: str | None = None


class LowestHashSample:
    """A random sample: the images with the lowest ids, which are hashes."""

    def __init__(self, limit: int) -> None:
        """Begin with no image, to retain at most `limit`."""
        self.items: list[Sample] = []
        self._limit = limit

    def add(self, manifest: pa.Table) -> None:
        """Sample these rows of the manifest too, each of which must come only once."""
        rows = manifest
        if len(self.items) == self._limit:
            highest = self.items[-1].image_id
            is_lower = pc.less(rows["image_id"], highest)
            rows = rows.filter(is_lower)
        if rows.num_rows == 0:
            return
        lowest = pc.select_k_unstable(
            rows,
            k=self._limit,
            sort_keys=[("image_id", "ascending")],
        )
        candidates = [*self.items, *to_samples(rows.take(lowest))]
        candidates.sort(key=lambda sample: sample.image_id)
        self.items = candidates[: self._limit]

    def update(self, manifest: pa.Table) -> None:
        """Replace the images that are among these rows by what the rows say of them."""
        ids = [sample.image_id for sample in self.items]
        is_sampled = pc.is_in(
            manifest["image_id"],
            pa.array(ids, pa.string()),
        )
        rows = manifest.filter(is_sampled)
        updated = {sample.image_id: sample for sample in to_samples(rows)}
        self.items = [updated.get(sample.image_id, sample) for sample in self.items]


class ContactSheet:
    """A random sample of the images that are ok, and of those that each gate marked."""

    def __init__(self, marking_gates: Sequence[str] = ()) -> None:
        """Begin with no image. Images that `marking_gates` marked are sampled by gate too."""
        self._random = LowestHashSample(MAX_SAMPLES)
        self._by_gate = {gate: LowestHashSample(MAX_SAMPLES_PER_GATE) for gate in marking_gates}

    def add(self, shard: ReconciledShard) -> None:
        """Sample the images of one shard."""
        is_ok = pc.equal(shard.manifest["status"], "ok")
        ok_rows = shard.manifest.filter(is_ok)
        self._random.add(ok_rows)

        marks = ok_rows["marks"].combine_chunks()
        row_of_mark = pc.list_parent_indices(marks)
        gate_of_mark = pc.list_flatten(marks)
        for gate, sample in self._by_gate.items():
            is_of_gate = pc.equal(gate_of_mark, gate)
            marked_rows = row_of_mark.filter(is_of_gate)
            sample.add(ok_rows.take(marked_rows))

    def add_marked(self, gate: str, rows: pa.Table) -> None:
        """Sample rows of the manifest that a gate marked after looking at all shards."""
        self._by_gate[gate].add(rows)
        self._random.update(rows)

    @property
    def samples(self) -> list[Sample]:
        """The images of the sheet, in the order of the run."""
        return sorted(self._random.items, key=lambda sample: (sample.part, sample.byte_offset))

    @property
    def samples_by_gate(self) -> dict[str, list[Sample]]:
        """The images of each gate that marked any."""
        return {gate: sample.items for gate, sample in self._by_gate.items() if sample.items}


def to_samples(rows: pa.Table) -> Iterator[Sample]:
    """The images in these rows of the manifest, as samples."""
    columns = [column.name for column in fields(Sample) if column.name != "settings"]
    selected = rows.select([*columns, *CAPTION_SETTINGS])
    for row in selected.to_pylist():
        row["settings"] = {name: row.pop(name) for name in CAPTION_SETTINGS}
        row["prompt"] = truncate_text(row["prompt"], MAX_TEXT_CHARS)
        if row["id"] is not None:
            row["id"] = truncate_text(row["id"], MAX_ID_CHARS)
        row["marks"] = tuple(row["marks"] or ())
        reason = row["marks_reason"]
        if reason:
            row["marks_reason"] = truncate_text(reason, MAX_TEXT_CHARS)
        yield Sample(**row)


def read_sample(store: Store, sample: Sample) -> bytes:
    """The image as it is stored. Reads the bytes of this image alone."""
    return read_image_bytes(store, asdict(sample))


def render_thumbnail(store: Store, sample: Sample, content: bytes) -> bytes:
    """The image as a JPEG of at most 256 pixels a side. Raises BadInput if it is damaged."""
    rgb = decode_stored_image(store, asdict(sample), content)
    return encode_thumbnail(rgb, THUMBNAIL_SIDE)
