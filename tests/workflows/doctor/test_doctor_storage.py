"""Whether the job's storage does what the job needs, as far as this machine can tell."""

import fsspec
import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.job.tuning_file import add_tuning_entry
from imagekiln.steps.storage import object_store, open_store
from imagekiln.steps.storage.object_store import S3_OPTIONS
from imagekiln.workflows.doctor.check_storage import (
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


def test_a_bucket_that_takes_each_object_once_is_ok_and_left_empty(s3_bucket: str) -> None:
    found = check_output(_job(s3_bucket))
    assert (found.verdict, found.says) == ("ok", f"{s3_bucket}/out takes new objects, each once.")
    assert fsspec.filesystem("s3").find(s3_bucket) == []


@pytest.mark.parametrize(("risk", "verdict"), [("refuse", "wrong"), ("accept", "ok")])
def test_a_store_that_ignores_conditional_writes_is_wrong_unless_the_job_accepts_it(
    monkeypatch: pytest.MonkeyPatch, risk: str, verdict: str
) -> None:
    with stub_s3(conditional=False) as store:
        s3.log_in(s3.S3Server(store.endpoint), monkeypatch)
        found = check_output(_job("s3://bucket", unconditional_writes=risk))
        assert found.verdict == verdict
        assert ("ignores conditional writes" in found.says) == (verdict == "wrong")
        assert store.objects == {}


def test_a_probe_that_may_not_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_s3() as store:
        s3.log_in(s3.S3Server(store.endpoint), monkeypatch)
        store.faults.extend(["none", "none", (403, "AccessDenied")])
        found = check_output(_job("s3://bucket"))
        assert (found.verdict, list(store.objects)) == (
            "ok",
            [found.says.rpartition("s3:/")[2].rstrip(".")],
        )


def test_a_bucket_that_is_not_there_is_wrong(s3_bucket: str) -> None:
    found = check_output(_job(f"{s3_bucket}-not"))
    assert found.verdict == "wrong"
    assert "no such bucket" in found.says


def test_a_key_that_may_only_read_is_wrong(
    s3_bucket: str, s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.log_in(s3_server, monkeypatch, s3.READER)
    found = check_output(_job(s3_bucket))
    assert found.verdict == "wrong"
    assert "access was refused" in found.says


def test_a_store_that_is_out_of_reach_is_unknown(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(
        S3_OPTIONS, "config_kwargs", {"connect_timeout": 1, "retries": {"total_max_attempts": 1}}
    )
    monkeypatch.setattr(object_store, "S3FS_ATTEMPTS", 1)
    s3.forget_connections()
    found = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/a.parquet"))
    assert found.verdict == "unknown"
    assert found.remedy is not None
    assert "Pods may reach it" in found.remedy


def test_a_machine_without_credentials_knows_nothing(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3.forget_connections()
    found = check_output(_job(s3_bucket))
    assert found.verdict == "unknown"
    assert "no credentials" in found.says


def test_prompts_that_can_be_read_are_ok(s3_bucket: str) -> None:
    open_store(f"{s3_bucket}/prompts").create("a.parquet", b"PAR1")
    found = check_prompts(_job(s3_bucket))
    assert (found.verdict, found.says) == ("ok", f"{s3_bucket}/prompts/*.parquet can be read.")


@pytest.mark.parametrize("name", ["*.parquet", "a.parquet"])
def test_prompts_that_are_not_there_are_wrong(s3_bucket: str, name: str) -> None:
    found = check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/prompts/{name}"))
    assert found.verdict == "wrong"
    assert "no such file" in found.says


def test_prompts_of_a_date_are_not_looked_for() -> None:
    assert (
        check_prompts(_job("s3://bucket", prompts="s3://bucket/{date}.parquet")).verdict
        == "unknown"
    )


def test_prompts_that_ship_are_there() -> None:
    assert check_prompts(_job("s3://bucket", prompts="bundled:prompts.parquet")).verdict == "ok"


def test_a_tuning_file_is_read(s3_bucket: str) -> None:
    name = f"{s3_bucket}/tuning.yaml"
    asked = _job(s3_bucket, batch={"tuning": name})
    assert check_tuning(asked).verdict == "wrong"
    add_tuning_entry(name, entry())
    found = check_tuning(asked)
    assert (found.verdict, found.says) == ("ok", f"{name} can be read.")
    open_store(s3_bucket).replace("tuning.yaml", b"entries: []")
    assert "is no tuning file" in check_tuning(asked).says


@pytest.mark.parametrize("key", ["prompts", "output"])
def test_a_place_on_this_machine_is_wrong(key: str) -> None:
    found = check_paths(_job("s3://bucket", **{key: "/data/here"}))
    assert found.verdict == "wrong"
    assert f"{key} is '/data/here'" in found.says
