"""Which rights in a bucket the pods of a batch need: those of the policy in the docs, and no fewer.

The server enforces the policy, and the pods log in as a user who has no other right.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiobotocore.client import AioBaseClient
from botocore.exceptions import ClientError

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, StorageRefused
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import SUCCESS_KEY, commit_key, part_key
from imagekiln.steps.storage import open_store
from tests import s3
from tests.nights import Setting, finish_night, work

PAGE = Path(__file__).parents[2] / "docs/cluster.md"
POLICY_PATTERN = re.compile(r"```json\n(\{\s*\"Version\": .*?)```", re.DOTALL)
DOCUMENTED_BUCKET, DOCUMENTED_FOLDER = "datasets", "postcards"
# An action, on the objects of a resource that ends so.
Right = tuple[str, str]
LISTING: Right = ("s3:ListBucket", "")


def documented_rights() -> list[Right]:
    """What the policy in the docs allows, one by one."""
    (text,) = POLICY_PATTERN.findall(PAGE.read_text())
    return [
        (action, resource.removeprefix(f"arn:aws:s3:::{DOCUMENTED_BUCKET}"))
        for statement in json.loads(text)["Statement"]
        for action in _listed(statement["Action"])
        for resource in _listed(statement["Resource"])
    ]


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# Without the right to list, a run that is not resumed lacks notes alone here, and on AWS much more:
# see the last test.
NEEDED = [right for right in documented_rights() if right != LISTING]


class Bucket:
    """A bucket whose policy alone says what the pods may do."""

    def __init__(self, server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make a bucket, in which pods have no right yet."""
        self._server = server
        self.name = server.make_bucket()
        self._monkeypatch = monkeypatch

    @property
    def output(self) -> str:
        """Where the policy lets the runs be."""
        return f"s3://{self.name}/{DOCUMENTED_FOLDER}"

    def allow(self, rights: Sequence[Right]) -> None:
        """Let pods do this and nothing else, and be a pod from now on."""
        self._server.allow(s3.POD, self.name, rights)
        self._log_in(s3.POD)

    def lose(self, run: str, key: str) -> None:
        """Remove an object, as somebody who may."""
        self._log_in(s3.WRITER)
        open_store(run).remove(key)
        self._log_in(s3.POD)

    def _log_in(self, login: s3.Login) -> None:
        s3.log_in(self._server, self._monkeypatch, login)


@pytest.fixture
def bucket(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, in which pods have the rights of the docs."""
    made = Bucket(s3_server, monkeypatch)
    made.allow(documented_rights())
    return made


def small_job(bucket: Bucket, folder: Path) -> Job:
    """A job with passes, of a few images."""
    setting = Setting(1, 1.0, skip_existing=True, passes=True, part_images=2)
    return setting.job(folder, 0).model_copy(update={"output": bucket.output})


@pytest.mark.slow
def test_documented_rights_are_enough_for_a_run_that_loses_a_part(
    bucket: Bucket, tmp_path: Path
) -> None:
    lose_a_part_and_make_it_again(bucket, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("right", NEEDED, ids=" on ".join)
def test_each_documented_right_is_needed_and_its_lack_is_said_in_a_sentence(
    bucket: Bucket, tmp_path: Path, right: Right
) -> None:
    rights = documented_rights()
    rights.remove(right)
    bucket.allow(rights)
    with pytest.raises(StorageRefused, match="access was refused") as refusal:
        lose_a_part_and_make_it_again(bucket, tmp_path)
    assert f"s3://{bucket.name}/{DOCUMENTED_FOLDER}" in str(refusal.value)

    bucket.allow(documented_rights())
    lose_a_part_and_make_it_again(bucket, tmp_path)


def lose_a_part_and_make_it_again(bucket: Bucket, folder: Path) -> None:
    """Make a run, lose one of its parts, and make that again: all that pods do."""
    job = small_job(bucket, folder)
    run = make_plan(job)
    for shard in range(len(run.plan.shards)):
        work(run.uri, shard)
    bucket.lose(run.uri, part_key(0, 0))
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    finish_night(job)
    assert verify(run.uri).images == run.plan.counts.images


def test_keys_of_pods_can_remove_nothing(bucket: Bucket, tmp_path: Path) -> None:
    plan = finish_night(small_job(bucket, tmp_path))
    run = f"{bucket.output}/{plan.run_id}"
    store = open_store(run)
    for key in (part_key(0, 0), "plan.json", commit_key(0), SUCCESS_KEY):
        with pytest.raises(StorageRefused, match="access was refused"):
            store.remove(key)
    assert verify(run).images == plan.counts.images


def test_where_aws_hides_what_is_absent_the_message_names_the_right_that_is_lacking(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SeaweedFS says of an absent object that it is absent, also to those who may list nothing.
    call = AioBaseClient._make_api_call

    async def call_as_aws(self: AioBaseClient, name: str, request: dict[str, object]) -> object:
        try:
            return await call(self, name, request)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                raise
            refusal = {"Code": "AccessDenied", "Message": "Access Denied"}
            raise ClientError({"Error": refusal}, name) from None

    monkeypatch.setattr(AioBaseClient, "_make_api_call", call_as_aws)
    with pytest.raises(StorageRefused, match="s3:ListBucket"):
        finish_night(small_job(bucket, tmp_path))
