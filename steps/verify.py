"""Reads a whole run back and checks it against the plan and the manifest, by hash."""

import hashlib
from dataclasses import dataclass

from imagekiln.steps import names, parts, plan, shard, tables
from imagekiln.steps.aggregate import in_order
from imagekiln.steps.encode import decode, pixels_hash
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.plan import Plan
from imagekiln.steps.reconcile import reconcile
from imagekiln.steps.storage import Store, open_store

LISTED = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back: images with good bytes, and how many bytes."""

    run: str
    images: int
    ok: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Checked:
    images: int
    ok: int
    bytes: int
    wrong: tuple[str, ...]


def verify(uri: str) -> Verified:
    """Read every object of the run at `uri`. Raises Incomplete with a list where anything is missing or differs."""
    store = open_store(uri)
    frozen = plan.load(store)
    if not store.exists(names.SUCCESS):
        raise Incomplete(f"{store.uri}: has no {names.SUCCESS}, so it is not finished. Run or aggregate it first.")
    checked = list(in_order(lambda number: _check(store, frozen, number), len(frozen.shards)))
    wrong = [sentence for each in checked for sentence in each.wrong]
    if wrong:
        more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        raise Incomplete(f"{store.uri}: {'; '.join(wrong[:LISTED])}{more}. Restore these objects, or make them again.")
    return Verified(
        store.uri,
        sum(each.images for each in checked),
        sum(each.ok for each in checked),
        sum(each.bytes for each in checked),
    )


def _check(store: Store, frozen: Plan, number: int) -> _Checked:
    found = reconcile(store, frozen, number)
    wrong = [f"{key} is missing" for key in found.missing]
    manifest = tables.read(store, names.manifest(number))
    if not manifest.equals(found.manifest):
        wrong.append(f"{names.manifest(number)} differs from the parts")
    ok = size = 0
    for part in shard.read(store, frozen, number):
        if part.key not in found.missing:
            good, read, sentences = _check_part(store.read(part.key), part.key, store.at(part.key))
            ok, size, wrong = ok + good, size + read, [*wrong, *sentences]
    return _Checked(found.manifest.num_rows, ok, size, tuple(wrong))


def _check_part(content: bytes, key: str, where: str) -> tuple[int, int, list[str]]:
    table = tables.from_parquet(content, where, ["image", *tables.OUTCOME.names, "image_id", "width", "height"])
    offsets = parts.offsets(content, where).to_pylist()
    wrong, ok, size = [], 0, 0
    for row, offset in zip(table.to_pylist(), offsets, strict=True):
        if row["status"] != "ok":
            continue
        problem = _problem(row, content[offset : offset + row["size"]])
        if problem:
            wrong.append(f"{key}: image {row['image_id']} {problem}")
        else:
            ok, size = ok + 1, size + row["size"]
    return ok, size, wrong


def _problem(row: dict[str, object], at_offset: bytes) -> str | None:
    image = row["image"]
    content = image["bytes"] if isinstance(image, dict) else b""
    if content != at_offset:
        return "is not where the footer says"
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        return "has other bytes than were written"
    try:
        rgb = decode(content)
    except (OSError, ValueError) as error:
        return f"does not decode ({error})"
    if pixels_hash(rgb) != row["pixels_sha256"]:
        return "has other pixels than were drawn"
    return None if rgb.shape[:2] == (row["height"], row["width"]) else "has another size than was planned"
