"""What the gallery answers over HTTP, to its page and to strangers."""

import datetime as dt
import hashlib
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.gallery.gallery import open_gallery
from imagekiln.steps.gallery.index import GalleryIndex
from imagekiln.steps.gallery.queries import PageQuery
from imagekiln.steps.gallery.server import GalleryServer, is_own_host, serve_gallery
from imagekiln.steps.runtime.signals import stop_on_signals
from tests import s3
from tests.faults import manifest_names
from tests.galleries import (
    HOSTILE,
    HOSTILE_COLUMN,
    IMAGES,
    SELECTIONS,
    SHARD,
    Client,
    Row,
    allowed_sources,
    conditions,
    image_path,
    serving,
    write_best_of,
    write_runs,
)
from tests.jobs import files
from tests.runs import encoded, fill, planned


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    write_runs(folder, str(folder / "out"))
    return folder / "out"


@pytest.fixture(scope="module")
def client(output: Path) -> Iterator[Client]:
    with serving(str(output)) as client:
        yield client


@pytest.fixture(scope="module")
def rows(output: Path) -> list[Row]:
    """All manifest rows, in the order of the gallery."""
    tables = [pq.read_table(path) for path in sorted(output.glob("*/manifest/*.parquet"))]
    listed: list[Row] = pa.concat_tables(tables).to_pylist()
    newest = [row for row in listed if row["run_id"] == "night-1"]
    return newest + [row for row in listed if row["run_id"] == "night-0"]


def ids(rows: list[Row]) -> list[object]:
    return [row["image_id"] for row in rows]


def all_pages(client: Client, **options: object) -> list[Row]:
    """The images of all pages, three at a time."""
    listed: list[Row] = []
    after = None
    while page := client.tiles(after=after, limit=3, **options):
        listed += page
        after = page[-1]["number"]
    return listed


def test_pages_hold_every_image_once(client: Client, rows: list[Row]) -> None:
    assert ids(all_pages(client)) == ids(rows)
    assert client.get("/count").json == {"failed": 2, "ok": 2 * IMAGES - 2}


@pytest.mark.parametrize("descending", [True, False])
def test_sorted_pages_hold_every_image_once_where_many_values_are_equal(
    client: Client, rows: list[Row], descending: bool
) -> None:
    sign = -1 if descending else 1
    expected = sorted(rows, key=lambda row: sign * float(str(row["score"])))
    assert ids(all_pages(client, sort="score", descending=descending)) == ids(expected)


@pytest.mark.parametrize(("where", "is_selected"), SELECTIONS)
def test_conditions_select_what_a_scan_of_the_manifests_does(
    client: Client,
    rows: list[Row],
    where: tuple[tuple[str, str, str], ...],
    is_selected: Callable[[Row], bool],
) -> None:
    expected = [row for row in rows if is_selected(row)]
    assert ids(client.tiles(*where)) == ids(expected)
    assert client.get("/count", {"where": conditions(*where)}).json == Counter(
        row["status"] for row in expected
    )


def test_an_image_comes_with_its_row_and_command_and_those_most_alike(
    client: Client, rows: list[Row], output: Path
) -> None:
    tile = client.tiles(("prompt", "is", HOSTILE))[0]
    stored = next(row for row in rows if row["image_id"] == tile["image_id"])
    image = client.get(image_path("image", tile))
    assert hashlib.sha256(image.content).hexdigest() == stored["sha256"]
    assert image.headers["Content-Type"] == "image/png"
    thumbnail = client.get(image_path("thumbnail", tile))
    assert thumbnail.headers["Content-Type"] == "image/jpeg"
    assert thumbnail.content.startswith(b"\xff\xd8")

    details = client.get(image_path("row", tile)).json
    assert isinstance(details, dict)
    values = details["values"]
    assert (values["prompt"], values[HOSTILE_COLUMN]) == (HOSTILE, HOSTILE)
    assert values["phash"] == str(stored["phash"])  # as text: JavaScript's numbers are shorter
    command = f"imagekiln reproduce {output}/{tile['run']} {tile['image_id']}"
    assert details["command"] == command

    def distance(row: Row) -> int:
        mine, its = np.int64(stored["phash"]), np.int64(row["phash"])
        return int(np.bitwise_count((mine ^ its).view(np.uint64)))

    others = [row for row in rows if row["phash"] is not None and row is not stored]
    nearest = sorted(others, key=distance)
    assert ids(details["neighbors"]) == ids(nearest)
    assert [near["note"] for near in details["neighbors"]] == [
        f"{distance(row)} bits" for row in nearest
    ]


def test_an_image_that_failed_has_a_row_and_no_file(client: Client) -> None:
    (tile, _) = client.tiles(("status", "is", "failed"))
    assert tile["error"] == HOSTILE
    assert client.get(image_path("row", tile)).status == 200
    answer = client.get(image_path("image", tile))
    assert (answer.status, b"its status is failed" in answer.content) == (400, True)


def test_looking_changes_nothing_in_a_run(client: Client, output: Path) -> None:
    before = files(output)
    for tile in client.tiles():
        for noun in ("image", "thumbnail", "row"):
            client.get(image_path(noun, tile))
    client.get("/trends", {"column": "contrast"})
    assert files(output) == before


def test_trends_have_the_figures_of_each_run_and_the_mean_of_a_column(client: Client) -> None:
    runs = client.get("/trends", {"column": "score"}).json
    assert isinstance(runs, list)
    assert [(run["run_id"], run["images"], run["ok"]) for run in runs] == [
        ("night-0", IMAGES, IMAGES - 1),
        ("night-1", IMAGES, IMAGES - 1),
    ]
    # Of the scores 0, 1, 2, 3, 0 and so on, row 3 failed.
    assert [run["mean"] for run in runs] == pytest.approx([10 / 9, 19 / 9])
    assert [run["not_ok"] for run in runs] == [1, 1]


def test_candidates_that_were_not_kept_are_no_failures_and_have_no_part_in_means(
    tmp_path: Path,
) -> None:
    uri = write_best_of(tmp_path)
    with serving(uri) as client:
        assert client.get("/count").json == {"failed": 4, "forgotten": 1, "ok": 1, "outscored": 6}
        runs = client.get("/trends", {"column": "spread"}).json
        assert isinstance(runs, list)
        (run,) = runs
        [score] = pq.read_table(f"{uri}/images")["spread"].to_pylist()
        assert run["mean"] == pytest.approx(score)
        assert run["not_ok"] == 4


def test_an_image_comes_with_the_candidates_that_it_has_beaten(tmp_path: Path) -> None:
    with serving(write_best_of(tmp_path)) as client:
        (kept,) = client.tiles(("status", "is", "ok"))
        details = client.get(image_path("row", kept)).json
        assert isinstance(details, dict)
        candidates = details["candidates"]
        assert candidates[0]["image_id"] == kept["image_id"]
        assert [each["status"] for each in candidates] == ["ok", *["outscored"] * 3]
        values = [re.split("[ ,]+", each["note"]) for each in candidates]
        assert [value[:3] for value in values] == [
            ["rank", str(rank), "spread"] for rank in range(1, 5)
        ]
        scores = [float(value[3]) for value in values]
        assert scores == sorted(scores, reverse=True)


def test_columns_of_any_plain_type_can_be_asked(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "day": dt.date(2026, 1, 2), "price": Decimal("1.50"), "number": 2**53},
        {"prompt": "b", "day": dt.date(2026, 2, 3), "price": Decimal("20.25"), "number": 2**53 + 1},
    ]
    names = ["day", "price", "number"]
    run = planned(tmp_path, str(tmp_path / "out"), rows, carry=names)
    fill(run, {0: encoded(0), 1: encoded(1)})
    aggregate(run.uri)
    questions = {
        "day": ("contains", "2026-02"),
        "price": ("at_least", "2"),
        "number": ("is", str(2**53 + 1)),  # which a float is not
    }
    with serving(run.uri) as client:
        for name, (operator, value) in questions.items():
            (tile,) = client.tiles((name, operator, value))
            assert tile["prompt"] == "b"
        assert client.get("/trends", {"column": "price"}).status == 200


REFUSED = [
    ("/images", {"where": "not JSON"}, 400),
    ("/images", {"where": conditions((HOSTILE, "is", "x"))}, 400),
    ("/images", {"where": conditions(("prompt", "is; DROP TABLE images", "x"))}, 400),
    ("/images", {"where": conditions(("score", "at_least", "1 OR 1"))}, 400),
    ("/images", {"where": conditions(("image_id", "is", "' OR 1"))}, 400),
    ("/images", {"sort": "rowid; DROP TABLE images"}, 400),
    ("/images", {"limit": "1000000"}, 400),
    ("/images", {"sort": "score", "after": "999999"}, 404),
    ("/trends", {"column": "prompt"}, 400),
    ("/image/0/" + "0" * 32, {}, 404),
    ("/image/99999999/" + "0" * 32, {}, 404),
    ("/image/0/..%2F..%2Fplan.json", {}, 404),
    ("/../../../etc/passwd", {}, 404),
    ("/\x7f%00%ff", {}, 404),
]


@pytest.mark.parametrize(("path", "options", "status"), REFUSED)
def test_a_hostile_request_is_refused_in_a_sentence(
    client: Client, path: str, options: dict[str, object], status: int
) -> None:
    answer = client.get(path.replace("\x7f", "%7f"), options)
    assert isinstance(answer.json, dict)
    assert (answer.status, list(answer.json)) == (status, ["error"])
    assert len(str(answer.json["error"])) < 500
    assert answer.headers["Content-Type"] == "application/json"
    assert client.get("/count").json == {"failed": 2, "ok": 2 * IMAGES - 2}


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_nothing_is_read_by_another_name(client: Client, host: str) -> None:
    tile = client.tiles(limit=1)[0]
    for path in ("/state", "/images", image_path("image", tile), image_path("thumbnail", tile)):
        assert client.get(path, headers={"Host": host}).status == 403


def test_hosts_are_addresses_or_names_of_this_machine() -> None:
    for own in ("127.0.0.1:8000", "localhost", "[::1]:9", "10.1.2.3:80", "kiln.example:8000"):
        assert is_own_host(own, "kiln.example")
    for other in ("", "evil.example", "localhost.evil.example", "[::1", "1.2.3.4.evil"):
        assert not is_own_host(other, "127.0.0.1")


def test_every_answer_has_a_type_and_a_policy(client: Client) -> None:
    tile = client.tiles(limit=1)[0]
    for path in ("/", "/state", "/nowhere", image_path("image", tile)):
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert allowed_sources(headers["Content-Security-Policy"]) == {
            "default-src": "'none'",
            "img-src": "'self'",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
    assert client.get("/state", method="HEAD").content == b""
    assert client.get("/state", method="POST").status == 501


def test_a_damaged_manifest_costs_its_own_images(output: Path, tmp_path: Path) -> None:
    run = shutil.copytree(output / "night-0", tmp_path / "night-0")
    first, second, third = manifest_names(str(run))
    (run / second).write_bytes(b"PAR1 nothing PAR1")
    (run / third).unlink()
    shutil.copy(run / first, run / third)
    with serving(str(run)) as client:
        state = client.get("/state").json
        assert isinstance(state, dict)
        assert (state["images"], state["indexed"]) == (IMAGES, SHARD)
        damaged, other = state["problems"]
        assert second in damaged
        assert "4 rows for 2 images" in other
        assert len(client.tiles()) == SHARD


@pytest.mark.parametrize("kind", [TryAgain, RuntimeError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_index_that_cannot_be_filled_says_so(
    output: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("the disk is full")

    monkeypatch.setattr(GalleryIndex, "_append", fail)
    with open_gallery(str(output)) as gallery:
        deadline = time.monotonic() + 30
        while not (state := gallery.state()).problems and time.monotonic() < deadline:
            time.sleep(0.01)
        assert gallery.page(PageQuery()) == []
    assert not state.is_complete
    assert "The index is not complete" in state.problems[0]


def test_a_manifest_that_was_replaced_meanwhile_shows_no_other_row(
    output: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(output / "night-0", tmp_path / "night-0")
    with serving(str(run)) as client:
        first, second = client.tiles(limit=2)
        path = run / manifest_names(str(run))[0]
        table = pq.read_table(path)
        pq.write_table(table.take(pa.array([1, 0, 2, 3])), path)
        for tile in (first, second):
            for noun in ("row", "image"):
                answer = client.get(image_path(noun, tile))
                assert (answer.status, b"Start the gallery again" in answer.content) == (400, True)


@pytest.mark.slow
def test_a_gallery_of_a_bucket_is_the_same_and_says_no_secret(
    output: Path, s3_bucket: str, client: Client
) -> None:
    fsspec.filesystem("s3").put(str(output), f"{s3_bucket}/out", recursive=True)
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    assert secret == s3.WRITER.secret
    with serving(f"{s3_bucket}/out") as remote:
        assert remote.tiles() == client.tiles()
        tile = remote.tiles(limit=1)[0]
        paths = ["/", "/state", "/trends", *(image_path(noun, tile) for noun in ("image", "row"))]
        for path in paths:
            answer = remote.get(path)
            assert answer.status == 200
            assert secret.encode() not in answer.content
        assert remote.get(paths[3]).content == client.get(paths[3]).content


def test_mistakes_are_told_in_a_sentence(output: Path, tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"holds no runs .* Check the name"):
        serve_gallery(str(tmp_path / "nothing"), "127.0.0.1", 0, print)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no runs"):
        serve_gallery(str(tmp_path / "empty"), "127.0.0.1", 0, print)
    unfinished = shutil.copytree(output, tmp_path / "unfinished")
    for run in ("night-0", "night-1"):
        shutil.rmtree(unfinished / run / "commits")
    with pytest.raises(Missing, match="no run that was aggregated"):
        serve_gallery(str(unfinished), "127.0.0.1", 0, print)
    with (
        open_gallery(str(output)) as gallery,
        GalleryServer(gallery, "127.0.0.1", 0) as server,
        pytest.raises(BadInput, match="Choose another --port"),
    ):
        serve_gallery(str(output), "127.0.0.1", server.server_port, print)


@pytest.mark.parametrize(
    ("host", "told"),
    [("127.0.0.1", 1), ("0.0.0.0", 2)],  # noqa: S104  # not for strangers' sake
)
def test_a_signal_ends_it_as_asked_and_who_may_look_is_told(
    output: Path, host: str, told: int
) -> None:
    sentences: list[str] = []

    def report(sentence: str) -> None:
        sentences.append(sentence)
        if len(sentences) == told:
            signal.raise_signal(signal.SIGINT)

    with stop_on_signals(at_once=True):
        serve_gallery(str(output), host, 0, report)
    assert sentences[0].startswith(f"{2 * IMAGES} images of 2 runs: http://{host}:")
    assert sentences[1:] == [f"Everybody who reaches {host} can see all of them."][: told - 1]
