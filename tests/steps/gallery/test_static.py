"""A gallery of files: what the browser finds in them, and what making them does to a folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.gallery import static_gallery
from imagekiln.steps.gallery.nights import read_nights
from imagekiln.steps.gallery.runs import find_gallery_runs
from imagekiln.steps.gallery.static_files import DATA_KEY
from imagekiln.steps.gallery.static_gallery import relative_folder, write_static_gallery
from imagekiln.steps.gallery.static_rows import Block, put_blocks
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.runs.keys import SUMMARY_KEY, manifest_key
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.storage.store import Store
from tests.browser import Tab, find_browser, open_tab
from tests.galleries import (
    HOSTILE,
    IMAGES,
    SELECTIONS,
    SHARD,
    Client,
    FileRequest,
    FileServer,
    PlainFileRequest,
    Row,
    allowed_sources,
    serving,
    serving_files,
    write_runs,
)
from tests.jobs import files

needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium: apt-get install chromium-headless-shell"
)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and beside them a gallery whose columns are in many small files."""
    folder = tmp_path_factory.mktemp("static")
    write_runs(folder, str(folder / "out"))
    write_static_gallery(str(folder / "out"), str(folder / "out" / "gallery"), chunk_rows=7)
    return folder / "out"


@pytest.fixture(scope="module")
def client(output: Path) -> Iterator[Client]:
    with serving(str(output)) as client:
        yield client


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture(scope="module")
def server(output: Path) -> Iterator[FileServer]:
    with serving_files(output) as server:
        yield server


def open_page(browser: Tab, url: str) -> None:
    browser.open("about:blank")
    browser.wait_for("location.href === 'about:blank'")
    browser.open(url)
    browser.wait_for("state && tiles.length && $('count').textContent")


def ask(browser: Tab, call: str, *arguments: object) -> object:
    """What the page's source of data gives, as JSON."""
    words = ", ".join(json.dumps(argument) for argument in arguments)
    return browser.evaluate(f"source.{call}({words})")


def with_numbers(tiles: list[Row]) -> list[Row]:
    """The images of pages, the values of whose sorted column need not be written alike."""
    return [tile | {"value": tile["value"] and float(tile["value"])} for tile in tiles]


@needs_browser
def test_every_search_and_order_gives_what_the_served_page_gives(
    browser: Tab, client: Client, server: FileServer
) -> None:
    open_page(browser, f"{server.url}gallery/")
    for where, _ in SELECTIONS:
        conditions = [dict(zip(("column", "operator", "value"), one, strict=True)) for one in where]
        for sort in (None, "score", "phash"):
            query = {"where": conditions, "sort": sort, "descending": True, "after": None}
            pages: list[Row] = []
            while page := ask(browser, "images", {**query, "limit": 3}):
                assert isinstance(page, list)
                pages += page
                query["after"] = page[-1]["number"]
            assert with_numbers(pages) == with_numbers(client.tiles(*where, sort=sort))
        assert ask(browser, "count", conditions) == {"images": len(client.tiles(*where))}
    mistake = [{"column": "score", "operator": "at_least", "value": "1 OR 1"}]
    said = f"source.count({json.dumps(mistake)}).catch((error) => error.message)"
    assert browser.evaluate(said) == "1 OR 1 is no number. Correct it."


@needs_browser
def test_those_alike_and_trends_are_those_of_the_served_page(
    browser: Tab, client: Client, server: FileServer
) -> None:
    open_page(browser, f"{server.url}gallery/")
    for tile in client.tiles():
        near = browser.evaluate(
            f"source.details({json.dumps(tile)}).then(({{ neighbors }}) => neighbors)"
        )
        served = client.get(f"/row/{tile['run']}/{tile['image_id']}").json
        assert isinstance(served, dict)
        assert near == served["neighbors"]
    nights = ask(browser, "trends", "score")
    served_nights = client.get("/trends", {"column": "score"}).json
    assert isinstance(nights, list)
    assert isinstance(served_nights, list)
    for night, served_night in zip(nights, served_nights, strict=True):
        assert night.pop("means")
        assert night == served_night


@needs_browser
@pytest.mark.parametrize("handler", [FileRequest, PlainFileRequest])
def test_full_images_are_read_from_the_runs_beside_it_and_compared_with_their_hashes(
    browser: Tab, output: Path, tmp_path: Path, handler: type[FileRequest]
) -> None:
    """By a part of the object, or whole where a web server sends no parts."""
    copy = shutil.copytree(output, tmp_path / "out")
    row = pq.read_table(copy / "night-1" / "manifest").to_pylist()[0]
    with serving_files(copy, handler) as server:
        open_page(browser, f"{server.url}gallery/")
        browser.evaluate("document.querySelector('#sheet button').click()")
        assert browser.wait_for("$('full').naturalWidth") == row["width"]
        assert browser.evaluate("$('detail-problem').hidden")
        assert f"/night-1/{row['part']}" in server.asked

    part = copy / "night-1" / row["part"]
    content = bytearray(part.read_bytes())
    content[row["byte_offset"] + 20] ^= 1
    part.write_bytes(content)
    with serving_files(copy, handler) as server:
        open_page(browser, f"{server.url}gallery/")
        browser.evaluate("document.querySelector('#sheet button').click()")
        said = browser.wait_for("!$('detail-problem').hidden && $('detail-problem').textContent")
        assert "another one than when this gallery was made" in str(said)
        assert browser.wait_for("$('full').naturalWidth")  # the thumbnail


@needs_browser
def test_without_the_runs_beside_it_a_page_shows_thumbnails_and_says_so(
    browser: Tab, output: Path
) -> None:
    with serving_files(output / "gallery") as server:
        open_page(browser, server.url)
        browser.evaluate("document.querySelector('#sheet button').click()")
        said = browser.wait_for("!$('detail-problem').hidden && $('detail-problem').textContent")
        assert "the server answers 404" in str(said)
        assert browser.wait_for("$('full').naturalWidth")


@needs_browser
def test_a_page_that_is_not_complete_or_opened_from_a_disk_says_what_to_do(
    browser: Tab, output: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(output / "gallery", tmp_path / "gallery")
    (copy / "gallery.json").unlink()
    with serving_files(copy) as server:
        browser.open(server.url)
        said = browser.wait_for("!$('problem').hidden && $('problem').textContent")
        assert "not complete yet" in str(said)
    browser.open(f"file://{copy}/index.html")
    said = browser.wait_for("location.protocol === 'file:' && $('problem').textContent")
    assert "python3 -m http.server" in str(said)


def test_a_gallery_that_was_interrupted_makes_only_what_is_missing(
    output: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    before = files(copy / "gallery")
    (copy / "gallery" / "gallery.json").unlink()
    lost = [next(copy.glob(f"gallery/{folder}/*")) for folder in ("rows", "thumbnails")]
    for path in lost:
        path.unlink()
    kept = {path: path.stat().st_ino for path in copy.glob("gallery/*/*")}
    written = write_static_gallery(str(copy), str(copy / "gallery"), chunk_rows=7)
    assert (written.images, written.runs, written.problems) == (2 * IMAGES, 2, ())
    assert {path: path.stat().st_ino for path in kept} == kept
    after = files(copy / "gallery")
    assert {name for name in after if name != "gallery.json"} == {*before} - {"gallery.json"}
    assert all(after[name] == content for name, content in before.items() if "/" in name)


def test_made_again_after_a_takedown_it_has_the_image_no_longer(
    output: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    shutil.rmtree(copy / "night-0")
    target = str(copy / "gallery")
    (copy / "gallery" / "notes.bin").write_bytes(b"of somebody else")
    with pytest.raises(BadInput, match="has other files than a static gallery"):
        write_static_gallery(str(copy), target)
    (copy / "gallery" / "notes.bin").rename(copy / "gallery" / "thumbnails" / "notes.bin")
    write_static_gallery(str(copy), target)
    before = {path.name for path in copy.glob("gallery/thumbnails/*")}

    image_id = pq.read_table(copy / "night-1" / "manifest")["image_id"][0].as_py()
    forget(str(copy), ForgetSelection((image_id,)), remove=True)
    write_static_gallery(str(copy), target)
    after = {path.name for path in copy.glob("gallery/thumbnails/*")}
    assert len(before - after) == 1  # the file that the image's thumbnail was in
    assert "notes.bin" in after


def test_images_that_are_taken_down_while_it_is_made_are_no_damage(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    target = str(tmp_path / "gallery")
    image_id = pq.read_table(copy / "night-1" / "manifest")["image_id"][0].as_py()

    def put_late(*arguments: Any) -> Iterator[Block]:  # noqa: ANN401  # as there
        forget(str(copy), ForgetSelection((image_id,)), remove=True)
        return put_blocks(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("imagekiln.steps.gallery.static_gallery.put_blocks", put_late)
        with pytest.raises(TryAgain, match="was changed while it was read"):
            write_static_gallery(str(copy), target)
    assert write_static_gallery(str(copy), target).problems == ()


def test_a_folder_with_anything_else_is_refused_and_nothing_written(
    output: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    before = files(copy)
    for target in (copy, copy / "night-0", copy / "night-0" / "images"):
        with pytest.raises(BadInput, match="Name a new folder, or an empty one"):
            write_static_gallery(str(copy), str(target))
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("<p>somebody's</p>")
    with pytest.raises(BadInput, match="Name a new folder, or an empty one"):
        write_static_gallery(str(copy), str(tmp_path / "page"))
    (tmp_path / "mine" / "rows").mkdir(parents=True)
    with pytest.raises(BadInput, match="Name a new folder, or an empty one"):
        write_static_gallery(str(copy), str(tmp_path / "mine"))
    (tmp_path / "linked").mkdir()
    write_static_gallery(str(copy), str(tmp_path / "linked"))
    shutil.rmtree(tmp_path / "linked" / "rows")
    (tmp_path / "linked" / "rows").symlink_to(copy)
    with pytest.raises(BadInput, match="is a link"):
        write_static_gallery(str(copy), str(tmp_path / "linked"))
    assert files(copy) == before


def test_a_damaged_image_and_a_damaged_manifest_cost_themselves_alone(
    output: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    shutil.rmtree(copy / "night-0")
    (copy / "night-1" / manifest_key(1)).write_bytes(b"PAR1 nothing PAR1")
    row = pq.read_table(copy / "night-1" / manifest_key(0)).to_pylist()[0]
    part = copy / "night-1" / row["part"]
    whole = part.read_bytes()
    part.write_bytes(whole.replace(whole[row["byte_offset"] + 40 :][:16], bytes(16), 1))
    written = write_static_gallery(str(copy), str(tmp_path / "gallery"))
    assert written.images == IMAGES - SHARD
    manifest, image = sorted(written.problems, key=lambda problem: "images/" in problem)
    assert manifest_key(1) in manifest
    assert row["image_id"] in image
    thumbnails = {path.name for path in (tmp_path / "gallery").glob("thumbnails/*")}

    part.write_bytes(whole)
    assert len(write_static_gallery(str(copy), str(tmp_path / "gallery")).problems) == 1
    restored = {path.name for path in (tmp_path / "gallery").glob("thumbnails/*")}
    assert len(restored - thumbnails) == 1


def test_a_manifest_that_cannot_be_read_now_is_left_out_of_no_gallery(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(store: Store, shard: int, images: int) -> pa.Table:
        if shard == 1:
            raise TryAgain("storage did not answer")
        return read_manifest(store, shard, images)

    with monkeypatch.context() as patch:
        patch.setattr(static_gallery, "read_manifest", read)
        with pytest.raises(TryAgain):
            write_static_gallery(str(output), str(tmp_path))
    assert not (tmp_path / DATA_KEY).exists()
    assert write_static_gallery(str(output), str(tmp_path)).images == 2 * IMAGES


def test_a_file_of_thumbnails_that_is_cut_off_is_made_again(output: Path, tmp_path: Path) -> None:
    write_static_gallery(str(output), str(tmp_path))
    before = files(tmp_path)
    for path in tmp_path.glob("thumbnails/*"):
        path.write_bytes(path.read_bytes()[:5])
    write_static_gallery(str(output), str(tmp_path))
    assert files(tmp_path) == before


def test_a_damaged_summary_costs_the_trends_of_its_run_alone(output: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(output, tmp_path / "out")
    (copy / "night-1" / SUMMARY_KEY).write_text("{")
    whole = find_gallery_runs(str(output))
    runs = find_gallery_runs(str(copy))
    assert len(runs.runs) == len(whole.runs)
    assert read_nights(runs) == [night for night in read_nights(whole) if night.run_id != "night-1"]
    assert write_static_gallery(str(copy), str(tmp_path / "gallery")).runs == len(whole.runs)


def test_too_many_images_are_refused_in_a_sentence(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_gallery, "MAX_IMAGES", 2 * IMAGES - 1)
    with pytest.raises(BadInput, match="has 20 images, and a static gallery at most 19"):
        write_static_gallery(str(output), str(tmp_path / "gallery"))
    assert not (tmp_path / "gallery").exists()


def test_no_text_of_a_run_is_in_the_page_itself_or_in_a_name(output: Path) -> None:
    page = (output / "gallery" / "index.html").read_text()
    assert HOSTILE not in page
    policy = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert allowed_sources(policy) == {
        "default-src": "'none'",
        "img-src": "blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    for path in output.glob("gallery/*/*"):
        assert set(path.name.partition(".")[0]) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    ("folder", "target", "way"),
    [
        ("s3://bucket/out/night", "s3://bucket/out/gallery", "../night"),
        ("s3://bucket/a b/ä", "s3://bucket/x/y", "../../a%20b/%C3%A4"),
        ("s3://bucket/out", "s3://bucket", "out"),
        ("s3://bucket/out", "s3://other/out", None),
        ("s3://bucket/out", "out", None),
        ("/data/out/night", "s3://bucket/out", None),
        ("/data/out/night#1", "/data/out/gallery", "../night%231"),
    ],
)
def test_runs_are_found_from_where_the_page_is(folder: str, target: str, way: str | None) -> None:
    assert relative_folder(folder, target) == way


@pytest.mark.slow
def test_in_a_bucket_it_is_the_same_and_opens_as_a_page(output: Path, s3_bucket: str) -> None:
    fsspec.filesystem("s3").put(str(output / "night-1"), f"{s3_bucket}/out/night-1", recursive=True)
    local = shutil.copytree(output / "night-1", output.parent / "one" / "night-1").parent
    write_static_gallery(str(local), str(local / "gallery"))
    write_static_gallery(f"{s3_bucket}/out", f"{s3_bucket}/out/gallery")
    store = fsspec.filesystem("s3")
    written = {
        path.partition("/gallery/")[2]: store.cat_file(path)
        for path in store.find(f"{s3_bucket}/out/gallery")
    }
    assert {name: content for name, content in written.items() if name != "gallery.json"} == {
        name: content
        for name, content in files(local / "gallery").items()
        if name != "gallery.json"
    }
    store.invalidate_cache()  # the listing has no types
    page = store.info(f"{s3_bucket}/out/gallery/index.html")
    assert page["ContentType"] == "text/html; charset=utf-8"
