"""Folders are read as Spark writes them, on disk and in a bucket, and their names are columns."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.plan.source_files import expand_pattern, gather_sources
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage import filesystem, open_store
from imagekiln.steps.storage.uri import read_text
from tests.jobs import image_rows, plan, write
from tests.servers import running, silent_server


def _put(folder: str, *names: str) -> None:
    store = open_store(folder)
    for name in names:
        store.create(name, b"prompt\na\n")


def _names_in(folder: str, pattern: str = "") -> list[str]:
    return [name.removeprefix(f"{folder}/") for name in expand_pattern(f"{folder}{pattern}")]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("end", ["", "/"])
def test_folder_is_all_files_of_data_below_it(store_uri: str, end: str) -> None:
    _put(store_uri, "in/b.csv", "in/a/z.parquet", "in/a.jsonl", "in/deep/er/x.TSV", "other.csv")
    _put(store_uri, "in/_SUCCESS", "in/_tmp/x.csv", "in/.a.csv.crc", "in/.hidden.csv")
    _put(store_uri, "in/README.md", "in/dataset_infos.json")
    assert _names_in(f"{store_uri}/in", end) == ["a.jsonl", "a/z.parquet", "b.csv", "deep/er/x.TSV"]


def test_folder_named_like_a_file_is_a_folder(store_uri: str, tmp_path: Path) -> None:
    _put(store_uri, "day.parquet/part-0.csv", "day.parquet/part-1.csv", "day.parquet/_SUCCESS")
    sources = gather_sources((f"{store_uri}/day.parquet",), tmp_path)
    assert [source.uri for source in sources] == [
        f"{store_uri}/day.parquet/part-0.csv",
        f"{store_uri}/day.parquet/part-1.csv",
    ]


def test_folder_without_data_is_refused(store_uri: str) -> None:
    _put(store_uri, "in/notes.md", "in/_SUCCESS")
    with pytest.raises(BadInput, match=r"in/: is a folder without files of prompts, whose names"):
        expand_pattern(f"{store_uri}/in/")


def test_pipe_and_device_are_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    for name in (f"{tmp_path}/*.csv", f"{tmp_path}/a.csv", "/dev/zero"):
        with pytest.raises(BadInput, match="is a pipe or a device"):
            gather_sources((name,), tmp_path)


@pytest.mark.parametrize("log", ["_delta_log/0.json", ".hoodie/x"])
def test_table_whose_log_says_which_rows_exist_is_refused(store_uri: str, log: str) -> None:
    _put(store_uri, "in/a.parquet", f"in/{log}")
    with pytest.raises(BadInput, match="whose folder also holds deleted rows"):
        expand_pattern(f"{store_uri}/in/")


def _hive(folder: Path) -> str:
    write(folder / "in/date=2026-11-01/lang=de/1.parquet", {"prompt": ["a"]})
    write(folder / "in/date=2026-11-01/lang=a%2Fb%20c/2.parquet", {"prompt": ["b"]})
    write(
        folder / "in/date=2026-11-02/lang=__HIVE_DEFAULT_PARTITION__/3.parquet", {"prompt": ["c"]}
    )
    return f"{folder}/in"


def test_partitions_are_columns_to_carry(tmp_path: Path) -> None:
    planned = plan(tmp_path, prompts=_hive(tmp_path), carry=["lang", "date"])
    rows = image_rows(planned)
    assert rows.schema.field("date").type == pa.string()
    assert sorted(rows.select(["prompt", "date", "lang"]).to_pylist(), key=str) == [
        {"prompt": "a", "date": "2026-11-01", "lang": "de"},
        {"prompt": "b", "date": "2026-11-01", "lang": "a/b c"},
        {"prompt": "c", "date": "2026-11-02", "lang": None},
    ]


def test_partitions_name_the_run_only_where_they_are_read(tmp_path: Path) -> None:
    def planned(date: str, *carry: str) -> PlanResult:
        folder = tmp_path / date
        write(folder / f"in/date={date}/x.parquet", {"prompt": ["a"]})
        return plan(folder, prompts=f"{folder}/in", carry=carry)

    first, second = (planned(date).plan.input.sha256 for date in ("2026-11-01", "2026-11-02"))
    assert first == second
    dated = [planned(date, "date").plan.input.sha256 for date in ("2026-11-01", "2026-11-02")]
    assert len({first, *dated}) == 3


@pytest.mark.parametrize(
    "uri",
    [
        "zip://p.csv::s3://b/p.zip",
        "reference://p.csv",
        "webhdfs://h/p.csv",
        "local:///etc/p.csv",
        "ftp://127.0.0.1/p.csv",
        "dbfs://h/p.csv",
    ],
)
def test_file_systems_around_others_are_refused(uri: str) -> None:
    with pytest.raises(BadInput, match="is not read from"):
        expand_pattern(uri)


def test_empty_text_files_that_spark_writes_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/part-0.json").write_text("")
    (tmp_path / "in/part-1.json").write_text('{"prompt": "a"}\n')
    planned = plan(tmp_path, prompts=f"{tmp_path}/in")
    assert (planned.plan.input.files, planned.plan.input.rows) == (1, 1)


def test_web_address_is_a_file_whatever_its_query(tmp_path: Path) -> None:
    uri = "http://127.0.0.1:1/prompts.csv?select=*&page=[x]"
    assert expand_pattern(uri) == [uri]
    with pytest.raises(TryAgain, match="storage did not answer"):
        gather_sources((uri,), tmp_path)


class _Web(BaseHTTPRequestHandler):
    """Answers with the status that the path names and a large table; knows nothing of ranges."""

    body = b"prompt\n" + (b"x" * 999 + b"\n") * 2000

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/").removesuffix(".csv")))
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body)

    do_HEAD = do_GET  # noqa: N815  # as the library names it

    def log_message(self, *_: object) -> None:
        pass


def test_table_and_job_file_come_from_a_web_server_that_knows_no_ranges(tmp_path: Path) -> None:
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _Web)) as url:
        (source,) = gather_sources((f"{url}/200.csv",), tmp_path)
        assert source.path.read_bytes() == _Web.body
        with pytest.raises(BadInput, match="has more than the 1048576 bytes of any settings"):
            read_text(f"{url}/200.csv")


def test_web_server_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(filesystem, "WEB_SILENCE_SECONDS", 0.2)
    with silent_server() as url, pytest.raises(TryAgain, match="storage did not answer"):
        gather_sources((f"{url}/prompts.csv",), tmp_path)
