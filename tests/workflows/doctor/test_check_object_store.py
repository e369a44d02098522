"""The job's storage, as far as this machine can tell."""

import hashlib
import io
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.job.tuning_file import add_tuning_entry
from imagekiln.steps.plan.input_files import read_input_files
from imagekiln.steps.storage import filesystem, open_store
from imagekiln.steps.storage.filesystem import S3_OPTIONS
from imagekiln.workflows.doctor.check_object_store import (
    check_output,
    check_paths,
    check_prompts,
    check_tuning,
)
from tests import s3
from tests.jobs import SHAPES
from tests.stub_s3 import stub_s3
from tests.tuned import entry


def _job(bucket: str, **settings: object) -> Job:
    places = {"prompts": f"{bucket}/prompts/*.parquet", "output": f"{bucket}/out"}
    return validate_job({"name": "test", "model": SHAPES} | places | settings)


def test_bucket_that_refuses_to_overwrite_is_ok_and_left_empty(s3_bucket: str) -> None:
    finding = check_output(_job(s3_bucket))
    assert finding.verdict == "ok"
    assert finding.says == (
        f"{s3_bucket}/out takes new objects, and refuses to overwrite them, "
        "with this machine's credentials."
    )
    assert fsspec.filesystem("s3").find(s3_bucket) == []


@pytest.mark.parametrize(("risk", "verdict"), [("refuse", "wrong"), ("accept", "ok")])
def test_store_that_ignores_conditional_writes_is_wrong_unless_the_job_accepts_it(
    monkeypatch: pytest.MonkeyPatch, risk: str, verdict: str
) -> None:
    with stub_s3(conditional=False) as store:
        s3.log_in(s3.S3Server(store.endpoint), monkeypatch)
        finding = check_output(_job("s3://bucket", unconditional_writes=risk))
        assert finding.verdict == verdict
        assert ("ignores conditional writes" in finding.says) == (verdict == "wrong")
        assert store.objects == {}


def test_probe_that_cannot_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_s3() as store:
        s3.log_in(s3.S3Server(store.endpoint), monkeypatch)
        store.faults.extend(["none", "none", "none", *[(403, "AccessDenied")] * 2])
        finding = check_output(_job("s3://bucket"))
        assert (finding.verdict, list(store.objects)) == (
            "ok",
            [finding.says.rpartition("s3:/")[2].rstrip(".")],
        )


def test_missing_bucket_is_wrong(s3_bucket: str) -> None:
    finding = check_output(_job(f"{s3_bucket}-not"))
    assert finding.verdict == "wrong"
    assert "no such bucket" in finding.says


def test_missing_bucket_is_not_created_by_trying_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_s3() as store:  # which takes an object into any bucket, as SeaweedFS does
        s3.log_in(s3.S3Server(store.endpoint), monkeypatch)
        store.faults.extend([(404, "NoSuchBucket")] * 2)
        finding = check_output(_job("s3://bucket"))
        assert (finding.verdict, store.objects) == ("wrong", {})
        assert not [request for request in store.requests if request.startswith("PUT")]


def test_key_that_may_only_read_is_wrong(
    s3_bucket: str, s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.log_in(s3_server, monkeypatch, s3.READER)
    finding = check_output(_job(s3_bucket))
    assert finding.verdict == "wrong"
    assert "access was refused" in finding.says


def test_store_out_of_reach_is_unknown(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(
        S3_OPTIONS, "config_kwargs", {"connect_timeout": 1, "retries": {"total_max_attempts": 1}}
    )
    monkeypatch.setattr(filesystem, "S3FS_ATTEMPTS", 1)
    s3.forget_connections()
    finding = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/a.parquet"))
    assert finding.verdict == "unknown"
    assert finding.remedy is not None
    assert "Pods may reach it" in finding.remedy


def test_machine_without_credentials_cannot_tell(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3.forget_connections()
    finding = check_output(_job(s3_bucket))
    assert finding.verdict == "unknown"
    assert "no credentials" in finding.says


def _parquet(**columns: Sequence[object]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def test_prompts_with_the_columns_of_the_job_are_ok(s3_bucket: str) -> None:
    content = _parquet(caption=["a"], country=["de"])
    open_store(f"{s3_bucket}/prompts").create("a.parquet", content)
    finding = check_prompts(_job(s3_bucket, columns={"prompt": "caption"}, carry=["country"]))
    assert (finding.verdict, finding.says) == (
        "ok",
        f"{s3_bucket}/prompts/*.parquet can be read with this machine's credentials, "
        "and the first file has the job's columns.",
    )


MISTAKES: dict[str, tuple[dict[str, object], str]] = {
    "prompts": ({"columns": {"prompt": "captoin"}}, "has no column 'captoin' (it has prompt, n)."),
    "another": ({"columns": {"seed": "sed"}}, "has no column 'sed' (it has prompt, n)."),
    "carried": ({"carry": ["land"]}, "has no column 'land' (it has "),
    "of another type": ({"columns": {"prompt": "n"}}, "column 'n' is int64, not text."),
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("settings", "says"), MISTAKES.values(), ids=MISTAKES)
def test_column_that_the_prompts_lack_is_wrong_in_the_words_of_plan(
    s3_bucket: str, tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    open_store(f"{s3_bucket}/prompts").create("a.parquet", _parquet(prompt=["a"], n=[1]))
    job = _job(s3_bucket, **settings)
    finding = check_prompts(job)
    assert finding.verdict == "wrong"
    assert says in finding.says
    with pytest.raises(BadInput) as planning:
        read_input_files(job, tmp_path)
    assert f"{finding.says} {finding.remedy}" == str(planning.value)


TEXTS = {
    "CSV longer than what is read": ("a.csv", "title,n\n" + "x,1\n" * 400_000, "wrong"),
    "JSON Lines": ("a.jsonl", '{"title": "x"}\n', "wrong"),
    "JSON Lines longer than what is read": ("a.jsonl", '{"title": "x"}\n' * 100_000, "unknown"),
}


@pytest.mark.parametrize(("name", "text", "verdict"), TEXTS.values(), ids=TEXTS)
def test_other_formats_are_judged_by_their_beginning(
    s3_bucket: str, name: str, text: str, verdict: str
) -> None:
    open_store(f"{s3_bucket}/prompts").create(name, text.encode())
    finding = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/prompts/{name}"))
    assert finding.verdict == verdict
    assert ("has no column 'prompt'" in finding.says) == (verdict == "wrong")


# By what is wrong: the file's name, its text, and whether it is refused beside other files too.
REFUSED_FILES = {
    "nested prompts": ("a.jsonl", '{"prompt": {"a": 1}}\n', True),
    "numbers": ("a.csv", "prompt,n\n12,x\n13,y\n", True),
    "a record of another width": ("a.csv", "prompt,n\na,b\na,b,c\n", True),
    "no records": ("a.csv", "prompt,n\n", False),
    "no objects": ("a.jsonl", "\n\n", False),
    "nothing": ("a.csv", "", False),
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("name", "text", "always"), REFUSED_FILES.values(), ids=REFUSED_FILES)
def test_short_text_is_judged_by_its_rows_in_the_words_of_plan(
    s3_bucket: str, tmp_path: Path, name: str, text: str, always: bool
) -> None:
    folder = f"{s3_bucket}/prompts"
    open_store(folder).create(name, text.encode())
    job = _job(s3_bucket, prompts=f"{folder}/{name}")
    finding = check_prompts(job)
    assert finding.verdict == "wrong"
    with pytest.raises(BadInput) as planning:
        read_input_files(job, tmp_path)
    assert f"{finding.says} {finding.remedy}" == str(planning.value)
    open_store(folder).create("b.csv", b"prompt\na\n")
    beside_others = check_prompts(_job(s3_bucket, prompts=folder))
    assert (beside_others.verdict == "wrong") == always


def test_parquet_without_rows_is_wrong(s3_bucket: str) -> None:
    empty = io.BytesIO()
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), empty)
    open_store(f"{s3_bucket}/prompts").create("a.parquet", empty.getvalue())
    assert "has no rows" in check_prompts(_job(s3_bucket)).says


def test_footer_that_claims_to_be_enormous_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    claim = 100 * 2**20
    with path.open("r+b") as file:
        file.truncate(claim + 2**20)  # sparse
        file.seek(0, io.SEEK_END)
        file.write(claim.to_bytes(4, "little") + b"PAR1")
    finding = check_prompts(_job("s3://bucket", prompts=str(path)))
    assert finding.verdict == "unknown"
    assert f"its footer of {claim} bytes is too long" in finding.says


LONG_NAME = "n" * 900_000
LONG_STRUCT = [{LONG_NAME: 1}]


@pytest.mark.parametrize(
    "columns",
    [
        {LONG_NAME: ["a"]},
        {"prompt": LONG_STRUCT, "land": [1]},
        {"prompt": ["a"], "land": LONG_STRUCT},
    ],
    ids=["absence", "type", "another type"],
)
def test_long_names_of_columns_are_cut(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(_parquet(**columns))
    job = _job("s3://bucket", prompts=str(path), columns={"seed": "land"})
    finding = check_prompts(job)
    assert finding.verdict == "wrong"
    assert "nnn..." in finding.says
    assert len(finding.says) < 500
    with pytest.raises(BadInput) as planning:
        read_input_files(job, tmp_path)
    assert f"{finding.says} {finding.remedy}" == str(planning.value)


def test_of_long_text_only_the_names_of_columns_are_vouched_for(s3_bucket: str) -> None:
    open_store(f"{s3_bucket}/prompts").create("a.csv", b"prompt,n\n" + b"12,1\n" * 400_000)
    finding = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/prompts/a.csv"))
    assert (finding.verdict, finding.says) == (
        "ok",
        f"{s3_bucket}/prompts/a.csv can be read with this machine's credentials, and the first "
        "file has columns of the names that the job reads.",
    )


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address at which Python's own server, which knows no ranges, serves `tmp_path`."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# A million bytes and more that cannot be compressed to less.
LONG_TEXTS = [
    hashlib.shake_128(bytes([row % 256, row // 256])).hexdigest(500) for row in range(3000)
]


def test_server_that_sends_no_ends_of_files_leaves_long_parquet_unknown(
    web: str, tmp_path: Path
) -> None:
    (tmp_path / "a.parquet").write_bytes(_parquet(prompt=LONG_TEXTS))
    job = _job("s3://bucket", prompts=f"{web}/a.parquet")
    finding = check_prompts(job)
    assert (finding.verdict, finding.says) == (
        "unknown",
        f"{web}/a.parquet: can be read, but its server does not send the end alone, which has the "
        "columns.",
    )
    (file,) = read_input_files(job, tmp_path)
    assert file.rows == len(LONG_TEXTS)
    (tmp_path / "b.parquet").write_bytes(_parquet(prompt=["a"]))
    assert check_prompts(_job("s3://bucket", prompts=f"{web}/b.parquet")).verdict == "ok"


def test_long_parquet_is_judged_by_its_end(s3_bucket: str) -> None:
    content = _parquet(prompt=LONG_TEXTS)
    open_store(f"{s3_bucket}/prompts").create("a.parquet", content)
    assert check_prompts(_job(s3_bucket)).verdict == "ok"
    assert check_prompts(_job(s3_bucket, carry=["land"])).verdict == "wrong"
    open_store(f"{s3_bucket}/prompts").replace("a.parquet", content[:-1])
    assert "is no whole Parquet file" in check_prompts(_job(s3_bucket)).says


def test_one_of_several_files_of_json_lines_does_not_tell_the_columns(s3_bucket: str) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        open_store(f"{s3_bucket}/prompts").create(name, b'{"title": "x"}\n')
    finding = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/prompts/*.jsonl"))
    assert (finding.verdict, finding.remedy) == (
        "unknown",
        "Check them where all prompts can be read: `imagekiln estimate JOB`.",
    )


def test_folder_that_is_named_like_a_file_is_judged_by_its_first_file(s3_bucket: str) -> None:
    store = open_store(f"{s3_bucket}/prompts/day.parquet")
    store.create("_SUCCESS", b"")
    store.create("land=de/part-0.parquet", _parquet(prompt=["a"]))
    job = _job(s3_bucket, prompts=f"{s3_bucket}/prompts/day.parquet", carry=["land"])
    assert check_prompts(job).verdict == "ok"


def test_damaged_prompts_are_wrong(s3_bucket: str) -> None:
    open_store(f"{s3_bucket}/prompts").create("a.parquet", b"PAR1")
    assert "is no whole Parquet file" in check_prompts(_job(s3_bucket)).says


@pytest.mark.parametrize("name", ["*.parquet", "a.parquet"])
def test_missing_prompts_are_wrong(s3_bucket: str, name: str) -> None:
    finding = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/prompts/{name}"))
    assert finding.verdict == "wrong"
    assert "no such file" in finding.says


def test_prompts_of_a_date_are_unknown() -> None:
    assert (
        check_prompts(_job("s3://bucket", prompts="s3://bucket/{date}.parquet")).verdict
        == "unknown"
    )


def test_bundled_prompts_are_ok() -> None:
    assert check_prompts(_job("s3://bucket", prompts="bundled:prompts.parquet")).verdict == "ok"


def test_tuning_file_must_be_readable(s3_bucket: str) -> None:
    name = f"{s3_bucket}/tuning.yaml"
    job = _job(s3_bucket, batch={"tuning": name})
    assert check_tuning(job).verdict == "wrong"
    add_tuning_entry(name, entry())
    finding = check_tuning(job)
    assert finding.verdict == "ok"
    assert finding.says == f"{name} can be read."
    open_store(s3_bucket).replace("tuning.yaml", b"entries: []")
    assert "is not a tuning file" in check_tuning(job).says


@pytest.mark.parametrize("key", ["prompts", "output"])
def test_path_on_this_machine_is_wrong(key: str) -> None:
    finding = check_paths(_job("s3://bucket", **{key: "/data/here"}))
    assert finding.verdict == "wrong"
    assert f"{key} is '/data/here'" in finding.says
