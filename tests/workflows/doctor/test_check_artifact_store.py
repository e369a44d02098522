"""Whether Argo's artifact store can be written to."""

import pytest

from imagekiln.steps.storage import filesystem
from imagekiln.steps.storage.filesystem import S3_OPTIONS
from imagekiln.workflows.doctor.check_artifacts import check_artifact_store
from tests import s3
from tests.kube import Kube, put_repository
from tests.stub_s3 import stub_s3


@pytest.fixture
def endpoint(kube: Kube, s3_server: s3.S3Server, s3_bucket: str) -> str:
    """The endpoint of a store that has the repository's bucket."""
    put_repository(kube, s3_server.endpoint, s3_bucket)
    return s3_server.endpoint


def test_store_that_takes_an_object_is_ok(kube: Kube, endpoint: str, s3_bucket: str) -> None:
    bucket = s3_bucket.removeprefix("s3://")
    check = check_artifact_store(kube.view())
    assert (check.name, check.verdict) == ("artifact-store", "ok")
    assert check.says == (
        f"Bucket {bucket} at {endpoint} takes new objects, for reports, "
        "with this machine's credentials."
    )


def test_bucket_that_does_not_exist_is_wrong(kube: Kube, endpoint: str) -> None:
    put_repository(kube, endpoint, "not-there")
    check = check_artifact_store(kube.view())
    assert check.verdict == "wrong"
    assert f"Bucket not-there at {endpoint}, for reports: " in check.says
    assert "no such bucket" in check.says


def test_store_out_of_reach_is_unknown_with_what_that_would_mean(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {"connect_timeout": 1, "retries": {"total_max_attempts": 1}}
    monkeypatch.setitem(S3_OPTIONS, "config_kwargs", once)
    monkeypatch.setattr(filesystem, "S3FS_ATTEMPTS", 1)
    s3.forget_connections()
    with stub_s3() as store:
        place = store.endpoint
    put_repository(kube, place, "reports")
    check = check_artifact_store(kube.view())
    assert check.verdict == "unknown"
    assert place in check.says
    assert "Argo's page lacks their reports" in str(check.remedy)


@pytest.mark.parametrize(("secret", "verdict"), [("s3-credentials", "wrong"), ("own", "unknown")])
def test_refused_key_is_wrong_only_where_argo_has_the_pods_own(
    kube: Kube,
    endpoint: str,
    s3_server: s3.S3Server,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    secret: str,
    verdict: str,
) -> None:
    s3.log_in(s3_server, monkeypatch, s3.READER)
    own = {"name": secret, "key": "accesskey"}
    put_repository(kube, endpoint, s3_bucket, accessKeySecret=own)
    assert check_artifact_store(kube.view()).verdict == verdict


def test_store_without_tls_needs_insecure(
    kube: Kube, endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {"connect_timeout": 1, "retries": {"total_max_attempts": 1}}
    monkeypatch.setitem(S3_OPTIONS, "config_kwargs", once)
    monkeypatch.setattr(filesystem, "S3FS_ATTEMPTS", 1)
    s3.forget_connections()
    put_repository(kube, endpoint, s3_bucket, insecure=False)
    check = check_artifact_store(kube.view())
    assert check.verdict == "wrong"
    assert "`insecure: true`" in str(check.remedy)
