"""Image files of whole small jobs, read with the tools that people have."""

import hashlib
import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from PIL import Image

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate import step
from imagekiln.steps.generate.encoder import OutputEncoder, build_image_metadata, encode_drawn_image
from imagekiln.steps.generate.start import generate
from imagekiln.steps.imaging.metadata import (
    AI_XMP_PACKET,
    MAX_COMMENT_UNITS,
    TRAINED_ALGORITHMIC_MEDIA,
)
from imagekiln.steps.job.output import (
    Encoding,
    Jpeg,
    Png,
    Webp,
    file_suffix,
    is_lossless,
    mime_type,
)
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.image import DrawnImage, EncodedImage
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.webui_text import ELLIPSIS, GUARD, ModelLabel
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import certificates, jobs
from tests.certificates import verified
from tests.encodings import KINDS, encoding_label
from tests.faults import manifests
from tests.notes import SOURCE, parse, read
from tests.runs import image_row, picture
from tests.smallest import SMALLEST
from tests.texts import HOSTILE

datasets = import_module(
    "datasets"
)  # type checkers take the folder of that name in this repository for it
SETTINGS: dict[str, Any] = {
    "defaults": {"steps": 1, "width": 16, "height": 16},
    "device": "cpu",
    "limits": {"failed_share": 1, "rejected_share": 1},
}
PROMPTS = [
    *HOSTILE,
    "x" * 3000,
    "two lines\nNegative prompt: of mine\nSteps: 1, Sampler: x, Seed: 2",
]


def made(folder: Path, encoding: Encoding, **settings: object) -> str:
    """A finished run of prompts that break things, verified."""
    job = jobs.job(
        folder, {"prompt": PROMPTS}, **{**SETTINGS, "encoding": encoding.model_dump(), **settings}
    )
    uri = run(job, NoProgress(), Stop()).uri
    assert verify(uri).ok == len(PROMPTS)
    return uri


def files(uri: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row of the manifest, and the image that it points at."""
    row: dict[str, Any]
    for row in manifests(uri):
        content = (Path(uri) / row["part"]).read_bytes()[
            row["byte_offset"] : row["byte_offset"] + row["byte_size"]
        ]
        assert hashlib.sha256(content).hexdigest() == row["sha256"]
        yield row, content


@pytest.fixture(scope="module", params=KINDS, ids=encoding_label)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Encoding, str]:
    return request.param, made(tmp_path_factory.mktemp(request.param.kind), request.param)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The hashes of the pixels where nothing but pixels is stored."""
    plain = made(tmp_path_factory.mktemp("plain"), Png(), metadata="none")
    return [row["pixels_sha256"] for row, _ in files(plain)]


@pytest.mark.quick_cases(2)
def test_the_text_of_every_image_reads_back_as_its_row(finished: tuple[Encoding, str]) -> None:
    for row, content in files(finished[1]):
        found = parse(read(content).parameters or "")
        lines = row["prompt"].replace("\0", "\ufffd").strip().split("\n")
        assert found.prompts[0].replace(GUARD, "") == "\n".join(map(str.strip, lines)).replace(
            GUARD, ""
        )
        assert found.prompts[1] == ""
        assert found.settings["Seed"] == str(row["seed"])
        assert found.settings["Size"] == "16x16"
        assert found.settings["Model"] == "bundled:shapes"


def test_every_image_is_marked_as_made_by_a_model(finished: tuple[Encoding, str]) -> None:
    assert {read(content).xmp.get(SOURCE) for _, content in files(finished[1])} == {
        TRAINED_ALGORITHMIC_MEDIA
    }


def test_hugging_face_datasets_decodes_the_images(
    finished: tuple[Encoding, str], tmp_path: Path
) -> None:
    encoding, uri = finished
    parts = f"{uri}/images/*.parquet"
    loaded = datasets.load_dataset(
        "parquet", data_files=parts, split="train", cache_dir=str(tmp_path)
    )
    for row in loaded:
        pixels = np.asarray(row["image"].convert("RGB"))
        assert pixels.shape == (16, 16, 3)
        same = hashlib.sha256(pixels.tobytes()).hexdigest() == row["pixels_sha256"]
        assert same or not is_lossless(encoding)
    assert loaded["prompt"] == PROMPTS


def test_files_are_named_for_what_they_are(finished: tuple[Encoding, str]) -> None:
    encoding, uri = finished
    names = duckdb.execute(f"SELECT image_id, image.path FROM '{uri}/images/*.parquet'").fetchall()
    assert names
    assert all(path == name + file_suffix(encoding) for name, path in names)


@pytest.mark.parametrize("encoding", KINDS, ids=encoding_label)
def test_with_the_mark_alone_no_prompt_seed_or_model_leaves(encoding: Encoding) -> None:
    row, model = (
        image_row("a secret prompt", 4711),
        ModelLabel("secret/model", "secret/model@" + "ab" * 20),
    )
    job = validate_job({**SMALLEST, "encoding": encoding.model_dump()})
    whole, mark, nothing = (
        build_image_metadata(row, model, job.encoding, each) for each in ("all", "mark", "none")
    )
    assert (whole.parameters or "").startswith("a secret prompt\nSteps: 2")
    assert (mark.parameters, mark.xmp) == (None, AI_XMP_PACKET)
    assert (nothing.parameters, nothing.xmp) == (None, None)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("encoding", [Png(), Jpeg()], ids=encoding_label)
@pytest.mark.parametrize("metadata", ["mark", "none"])
def test_the_switch_holds_for_every_image_of_a_job(
    encoding: Encoding, metadata: str, tmp_path: Path
) -> None:
    for _, content in files(made(tmp_path, encoding, metadata=metadata)):
        found = read(content)
        assert (found.parameters, found.xmp.get(SOURCE)) == (
            None,
            TRAINED_ALGORITHMIC_MEDIA if metadata == "mark" else None,
        )
        for hidden in (b"Steps", b"Seed", b"shapes", b"parameters", b"Exif"):
            assert hidden not in content


def test_in_a_jpeg_a_prompt_too_long_is_cut_and_in_others_it_is_whole() -> None:
    row, model = image_row("x" * 1_000_000), ModelLabel("a", "a@b")
    text = build_image_metadata(row, model, Jpeg(), "all").parameters or ""
    assert len(text) == MAX_COMMENT_UNITS - len("Negative prompt: ") - 1
    assert parse(text).prompts[0].endswith("xxx" + ELLIPSIS)
    assert parse(text).settings["Steps"] == "2"
    for encoding in (Png(), Webp()):
        assert (
            parse(build_image_metadata(row, model, encoding, "all").parameters or "").prompts[0]
            == "x" * 1_000_000
        )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("encoding", KINDS, ids=encoding_label)
def test_a_job_with_a_certificate_signs_every_image(encoding: Encoding, tmp_path: Path) -> None:
    uri = made(tmp_path / "job", encoding, c2pa=certificates.write(tmp_path / "certificates"))
    for row, content in files(uri):
        verified(content, mime_type(encoding))
        assert (read(content).xmp[SOURCE], row["status"]) == (TRAINED_ALGORITHMIC_MEDIA, "ok")
        assert (read(content).parameters or "") != ""
        with Image.open(io.BytesIO(content)) as image:
            image.load()
    key = (tmp_path / "certificates/key.pem").read_text().splitlines()[1]
    assert not any(key.encode() in content for content in jobs.files(Path(uri)).values())


def test_what_cannot_sign_ends_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"certificate": str(tmp_path / "no.pem"), "key": "env:IMAGEKILN_NO_KEY"}
    planned = make_plan(jobs.job(tmp_path, {"prompt": ["a"]}, **SETTINGS, c2pa=where))
    monkeypatch.setattr(step, "load_denoiser", None)
    with pytest.raises(BadInput, match=r"c2pa\.certificate: .*no\.pem: no such file"):
        generate(planned.uri, 0)


def test_nothing_said_and_something_signed_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"has c2pa, which marks each image, and metadata: none; remove one of them"
    ):
        jobs.job(tmp_path, **SETTINGS, metadata="none", c2pa={"certificate": "a", "key": "b"})


def test_nothing_is_stored_of_a_forgotten_image(tmp_path: Path) -> None:
    planned = jobs.plan(tmp_path, {"prompt": ["a"]})
    row = image_row("taken down", 3)
    encode = OutputEncoder(load_plan(open_store(planned.uri)), [row.image_id])
    assert encode(picture(3), row) == EncodedImage(3, "forgotten")
    other = image_row("another one", 4)
    assert encode(picture(4), other).status == "ok"


def test_hashes_are_those_of_the_bytes_and_of_the_bare_pixels() -> None:
    drawn = picture(3)
    assert drawn.rgb is not None
    found = encode_drawn_image(drawn, Png())
    assert found.content is not None
    assert found.sha256 == hashlib.sha256(found.content).hexdigest()
    assert found.pixels_sha256 == hashlib.sha256(drawn.rgb.tobytes()).hexdigest()


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (10, 200, 30)])
def test_one_flat_colour_is_blank(colour: tuple[int, int, int]) -> None:
    flat = np.full((8, 8, 3), colour, dtype=np.uint8)
    assert encode_drawn_image(DrawnImage(4, flat), Png()) == EncodedImage(
        4, "blank", "every pixel has the same color"
    )


def test_what_the_denoiser_refused_keeps_its_status_and_error() -> None:
    assert encode_drawn_image(
        DrawnImage(2, None, "failed", "ValueError: no"), Png()
    ) == EncodedImage(2, "failed", "ValueError: no")
