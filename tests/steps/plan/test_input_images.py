"""Input images: which are accepted, from where, and what becomes of the rest."""

import hashlib
import io
import json
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging import input_images as pictures
from imagekiln.steps.plan.input_images import InputImages, read_input_image
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import input_image_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.filesystem import open_filesystem
from tests import editors, jobs, models
from tests.jobs import image_rows, rejected
from tests.pictures import repeat_scan

ALL = {"limits": {"rejected_share": 1}}


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_INPUT_BYTES", 20_000)
    monkeypatch.setattr(pictures, "MAX_INPUT_PIXELS", 4096)


def _file(kind: str = "PNG", mode: str = "RGB", side: int = 16, **options: object) -> bytes:
    sink = io.BytesIO()
    noise = np.random.default_rng(3).integers(0, 256, (side, side, 3), dtype=np.uint8)
    picture = (
        Pillow.fromarray(noise[..., 0] * np.uint16(257))
        if mode == "I;16"
        else Pillow.fromarray(noise).convert(mode)
    )
    picture.save(sink, kind, **options)
    return sink.getvalue()


GOOD = _file()


def _plan(folder: Path, pictures: object, **settings: object) -> PlanResult:
    column = pictures if isinstance(pictures, pa.Array) else pa.array(pictures)
    table = pa.table(
        {"prompt": [f"prompt {place}" for place in range(len(column))], "source_image": column}
    )
    model = {"id": str(models.folder("sd")), "dtype": "float32"}
    return jobs.plan(folder, table, **{"model": model, **ALL, **settings})


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        len(content).to_bytes(4, "big")
        + kind
        + content
        + zlib.crc32(kind + content).to_bytes(4, "big")
    )


def _bomb(width: int, height: int) -> bytes:
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    data = zlib.compress(b"\0" * 10_000)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", data)
        + _chunk(b"IEND", b"")
    )


def _text_bomb() -> bytes:
    text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(b" " * 10_000_000, 9))
    return GOOD[:33] + text + GOOD[33:]  # behind the header


HOSTILE = {
    "cut off": (GOOD[:-60], "is damaged: it does not decode"),
    "cut off early": (GOOD[:20], "is damaged: it does not decode"),
    "a jpeg cut off": (_file("JPEG")[:-40], "is damaged: it does not decode"),
    "nothing": (b"", "is not a picture in PNG, JPEG, WEBP"),
    "text": (b"/etc/passwd", "is not a picture in PNG, JPEG, WEBP"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is not a picture in PNG, JPEG, WEBP"),
    "gif": (_file("GIF"), "is not a picture in PNG, JPEG, WEBP"),
    "eps": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
        "is not a picture in PNG, JPEG, WEBP",
    ),
    "tiff": (_file("TIFF"), "is not a picture in PNG, JPEG, WEBP"),
    "a bomb": (_bomb(60_000, 60_000), "has over 67108864 pixels"),
    "a bomb of warnings": (_bomb(10_000, 10_000), "has over 67108864 pixels"),
    "a bomb of time": (repeat_scan(1000), "is damaged: it does not decode"),
    "a bomb of text": (_text_bomb(), "is damaged: it does not decode"),
    "no pixels": (_bomb(0, 8), "is not a picture in PNG, JPEG, WEBP"),
    "large": (_file(side=65), "has over 67108864 pixels"),
    "heavy": (GOOD + b"\0" * 20_000, "has over 33554432 bytes"),
}


def test_a_picture_that_cannot_be_taken_refuses_its_row_and_no_other(tmp_path: Path) -> None:
    planned = _plan(tmp_path, [GOOD, *(content for content, _ in HOSTILE.values()), None])
    assert [(row["input_row"], row["column_name"], row["reason"]) for row in rejected(planned)] == [
        (number, "source_image", reason)
        for number, (_, reason) in enumerate(HOSTILE.values(), start=1)
    ]
    assert image_rows(planned)["source_image"].to_pylist() == [_hash(GOOD), None]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_bytes_come_in_every_type_that_writers_have(tmp_path: Path, kind: pa.DataType) -> None:
    struct = pa.types.is_struct(kind)
    cell: object = {"bytes": GOOD, "path": "there/is/no/such.png"} if struct else GOOD
    column = (
        pa.array([GOOD, GOOD, None]).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array([cell, cell, None], kind)
    )
    planned = _plan(tmp_path, column)
    assert image_rows(planned)["source_image"].to_pylist() == [_hash(GOOD), _hash(GOOD), None]


def test_bytes_and_places_of_one_picture_give_one_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(GOOD)
    monkeypatch.chdir(tmp_path)
    cells: list[object] = [
        [GOOD],
        ["a.png"],
        [str(tmp_path / "a.png")],
        [f"file://{tmp_path}/a.png"],
    ]
    ids = [
        image_rows(_plan(tmp_path / str(place), cell))["image_id"].to_pylist()
        for place, cell in enumerate(cells)
    ]
    assert ids.count(ids[0]) == 4
    assert ids[0] != image_rows(_plan(tmp_path / "other", [_file("WEBP")]))["image_id"].to_pylist()
    assert ids[0] != image_rows(_plan(tmp_path / "none", pa.nulls(1)))["image_id"].to_pylist()


def test_a_picture_in_a_bucket_is_taken_and_kept_once(tmp_path: Path, s3_bucket: str) -> None:
    bucket = open_store(s3_bucket)
    bucket.create("in/a.png", GOOD)
    files, path = open_filesystem(f"{s3_bucket}/in/empty.png")
    files.pipe_file(path, b"")
    uri = f"{s3_bucket}/in/a.png"
    planned = _plan(
        tmp_path,
        [uri, uri, f"{s3_bucket}/in/none.png", f"{s3_bucket}/in/empty.png"],
        output=s3_bucket,
    )
    assert image_rows(planned)["source_image"].to_pylist() == [_hash(GOOD)] * 2
    assert [row["reason"] for row in rejected(planned)] == [
        "does not exist, or may not be read",
        "is not a picture in PNG, JPEG, WEBP",
    ]
    stored_keys = [each.key for each in open_store(planned.uri).list_folder("inputs")]
    assert stored_keys == [input_image_key(_hash(GOOD))]


def test_no_place_is_asked_but_files_and_object_stores(tmp_path: Path) -> None:
    names = [
        "http://169.254.169.254/latest/meta-data",
        "https://example.com/a.png",
        "ftp://example.com/a.png",
        "s3://bucket/a.png::file:///etc/passwd",
        "simplecache::s3://bucket/a.png",
        "memory://a.png",
        "local:///etc/passwd",
        "github://a:b@main/a.png",
        "hf://a/b.png",
        "s3://bucket/" + "x" * 2000,
    ]
    reasons = [row["reason"] for row in rejected(_plan(tmp_path, [*names, None]))]
    assert reasons == ["is outside the locations this table may reference"] * len(names)


def test_no_file_that_is_no_image_comes_into_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"a token of the machine's")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").symlink_to(secret)
    monkeypatch.chdir(tmp_path / "in")
    names = [str(secret), f"file://{secret}", "../secret", "a.png", "/proc/self/environ", None]
    planned = _plan(tmp_path / "job", names)
    reasons = [row["reason"] for row in rejected(planned)]
    assert reasons == ["is not a picture in PNG, JPEG, WEBP"] * 5
    for content in jobs.files(Path(planned.uri)).values():
        assert b"token of the machine" not in content


def test_a_store_that_nothing_here_reads_from_refuses_the_job_and_not_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(BadInput, match=r"^gs://bucket: .*pip install 'imagekiln\[gcs\]'\."):
        _plan(tmp_path, ["gs://bucket/a.png", None])


def test_an_image_is_read_once_however_many_rows_name_it(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(GOOD)
    names_read: list[str] = []

    def read(name: str, table: str, limit: int) -> bytes:
        names_read.append(name)
        return read_input_image(name, table, limit)

    column = pa.array([str(tmp_path / "a.png")] * 1000)
    images = InputImages(read=read)
    for _ in range(3):
        digests = images.digest_column(column, "prompts.parquet").values.to_pylist()
        assert digests == [_hash(GOOD)] * 1000
    assert len(names_read) == 1


def _plan_edits(
    folder: Path, references: object, kind: str = "pix2pix", **columns: object
) -> PlanResult:
    column = references if isinstance(references, pa.Array) else pa.array(references)
    prompts = [f"prompt {place}" for place in range(len(column))]
    table = pa.table({"prompt": prompts, "reference_images": column, **columns})
    model = {"id": str(editors.folder(kind)), "dtype": "float32"}
    return jobs.plan(folder, table, model=model, **ALL)


@pytest.mark.parametrize("form", ["bytes", "structs", "paths", "JSON", "one"])
def test_a_row_has_several_reference_images(form: str, tmp_path: Path) -> None:
    contents = [_file(side=8), GOOD]
    paths = [str(tmp_path / name) for name in ("first.png", "second.png")]
    for path, content in zip(paths, contents, strict=True):
        Path(path).write_bytes(content)
    cells = {
        "bytes": pa.array([contents]),
        "structs": pa.array([[{"bytes": content, "path": None} for content in contents]]),
        "paths": pa.array([paths]),
        "JSON": pa.array([json.dumps(paths)]),
        "one": pa.array([paths[0]]),
    }
    planned = _plan_edits(tmp_path, cells[form], "qwen-image-edit-plus")
    hashes = [_hash(content) for content in contents[: 1 if form == "one" else 2]]
    assert image_rows(planned)["reference_images"].to_pylist() == [",".join(hashes)]
    store = open_store(planned.uri)
    assert [store.read(input_image_key(name)) for name in hashes] == contents[: len(hashes)]


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        ([GOOD, b"none"], "is not a picture in PNG, JPEG, WEBP"),
        ([GOOD, None], "does not exist, or may not be read"),
        ([GOOD] * 11, "has over 10 images"),
        ([], "is empty: StableDiffusionInstructPix2PixPipeline edits images"),
        ([GOOD] * 2, "has more images than StableDiffusionInstructPix2PixPipeline takes: 1"),
    ],
)
def test_a_bad_reference_costs_its_row(
    references: list[bytes | None], reason: str, tmp_path: Path
) -> None:
    planned = _plan_edits(tmp_path, [[GOOD], references])
    assert len(image_rows(planned)) == 1
    assert [row["reason"] for row in rejected(planned)] == [reason]


def test_the_size_follows_the_first_reference_or_the_row(tmp_path: Path) -> None:
    wide = io.BytesIO()
    Pillow.new("RGB", (64, 32)).save(wide, "PNG")
    sizes = pa.array([None, 48], pa.int64())
    planned = _plan_edits(
        tmp_path, [[wide.getvalue()]] * 2, "longcat-edit", width=sizes, height=sizes
    )
    rows = image_rows(planned)
    assert rows["width"].to_pylist() == [1456, 48]
    assert rows["height"].to_pylist() == [736, 48]


def test_a_model_that_edits_nothing_takes_no_references(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a star"] * 2, "reference_images": [[GOOD], None]})
    planned = jobs.plan(tmp_path, table, **ALL)
    (row,) = rejected(planned)
    assert row["reason"] == "needs a model that edits images, or model.ip_adapter"
