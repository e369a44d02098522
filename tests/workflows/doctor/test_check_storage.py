"""The job's storage, as far as this machine can tell."""

import fsspec
import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.job.tuning_file import add_tuning_entries
from imagekiln.steps.storage import filesystem, open_store
from imagekiln.steps.storage.filesystem import S3_OPTIONS
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_storage import (
    check_export,
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


def test_destination_of_an_export_must_take_an_object(s3_bucket: str) -> None:
    def finding(uri: str) -> DoctorCheck | None:
        return check_export(_job(s3_bucket, export=[{"format": "parquet", "to": uri}]))

    assert check_export(_job(s3_bucket)) is None
    there, absent = finding(f"{s3_bucket}/copy"), finding(f"{s3_bucket}-not/copy")
    assert there is not None
    assert there.verdict == "ok"
    assert fsspec.filesystem("s3").find(s3_bucket) == []
    assert "no such bucket" in str(absent)


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


def test_prompts_must_be_there(s3_bucket: str) -> None:
    def finding(name: str) -> DoctorCheck:
        return check_prompts(_job(s3_bucket, prompts=f"{s3_bucket}/prompts/{name}"))

    for name in ("*.parquet", "a.parquet"):
        assert (finding(name).verdict, "no such file" in finding(name).says) == ("wrong", True)
    store = open_store(f"{s3_bucket}/prompts")
    store.create("a.parquet", b"PAR1")
    says = f"{s3_bucket}/prompts/*.parquet can be read with this machine's credentials."
    assert (finding("*.parquet").verdict, finding("*.parquet").says) == ("ok", says)
    store.create("day.parquet/land=de/part-0.parquet", b"PAR1")
    assert finding("day.parquet").verdict == "ok", "a folder may be named like a file"
    assert finding("{date}.parquet").verdict == "unknown"


def test_tuning_file_must_be_readable(s3_bucket: str) -> None:
    name = f"{s3_bucket}/tuning.yaml"
    job = _job(s3_bucket, batch={"tuning": name})
    assert check_tuning(_job(s3_bucket)) is None
    assert "wrong" in str(check_tuning(job))
    add_tuning_entries(name, entry())
    assert f"{name} can be read." in str(check_tuning(job))
    open_store(s3_bucket).replace("tuning.yaml", b"entries: []")
    assert "is not a tuning file" in str(check_tuning(job))


@pytest.mark.parametrize("key", ["prompts", "output"])
def test_path_on_this_machine_is_wrong(key: str) -> None:
    finding = check_paths(_job("s3://bucket", **{key: "/data/here"}))
    assert finding.verdict == "wrong"
    assert f"{key} is '/data/here'" in finding.says
