"""Stores behind fsspec: S3 above all, with what only a stub can be made to do."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from imagekiln.steps.errors import KilnError, StorageRefused, TryAgain
from imagekiln.steps.runtime.metrics import STORAGE_ERRORS, STORAGE_RETRIES
from imagekiln.steps.storage import filesystem, open_store
from imagekiln.steps.storage.filesystem import S3_OPTIONS, ObjectStore
from imagekiln.steps.storage.store import ObjectInfo, Store
from tests.s3 import READER, WRITER, S3Server, forget_connections, log_in
from tests.stub_s3 import CONFLICT, EXPIRED, SLOW_DOWN, StubS3, stub_s3

MIB = 2**20


def test_large_object_is_created_once(s3_bucket: str) -> None:
    stores = [open_store(s3_bucket), open_store(s3_bucket)]
    # By default, s3fs sends these in pieces.
    contents = [bytes([number]) * (101 * MIB) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(
            pool.map(lambda store, content: store.create("large", content), stores, contents)
        )
    assert sorted(outcomes) == [False, True]
    assert not stores[0].create("large", contents[0])
    assert stores[0].read("large") == contents[outcomes.index(True)]


def dead_port(kind: str, resources: ExitStack) -> int:
    """A port that refuses connections, never accepts them, or never answers a request."""
    server = resources.enter_context(socket.socket())
    server.bind(("127.0.0.1", 0))
    if kind == "refuses":
        return int(server.getsockname()[1])
    server.listen(0 if kind == "swallows" else 100)
    # A full queue makes the next connection wait forever.
    for _ in range(3 if kind == "swallows" else 0):
        client = resources.enter_context(socket.socket())
        client.setblocking(False)
        client.connect_ex(server.getsockname())
    return int(server.getsockname()[1])


def _failures(store: Store) -> list[Exception]:
    """How reading an object, looking for it and creating it fail."""
    return [
        failure(store.read, "a"),
        failure(store.exists, "a"),
        failure(store.create, "a", b"x"),
    ]


def test_bucket_that_does_not_exist_is_bad_input(s3_bucket: str) -> None:
    store = open_store(f"{s3_bucket}-not")
    for raised in _failures(store):
        assert type(raised) is StorageRefused
        assert "no such bucket" in str(raised)


def test_store_that_only_looks_before_it_writes_does_not_pass_for_conditional(
    looking_first: str, tmp_path: Path
) -> None:
    store = open_store(f"{looking_first}{tmp_path}")
    assert store.create("a", b"1")
    assert store.create("a", b"2")


def test_reader_may_read_and_is_refused_to_write(
    s3_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(s3_bucket).create("a", b"x")
    log_in(s3_server, monkeypatch, READER)
    store = open_store(s3_bucket)
    assert store.read("a") == b"x"
    for raised in (
        failure(store.create, "b", b"x"),
        failure(store.replace, "a", b"y"),
        failure(store.remove, "a"),
    ):
        assert type(raised) is StorageRefused
        assert "Check credentials and permissions" in str(raised)


def connect_anew(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next request read the environment again, with these variables."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    forget_connections()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "settings",
    [
        {"AWS_ENDPOINT_URL": "nonsense"},
        {"AWS_ENDPOINT_URL": "ftp://store.example"},
        {"AWS_CONFIG_FILE": "damaged"},
    ],
    ids=str,
)
def test_setting_that_the_client_cannot_use_is_no_reason_to_try_again(
    settings: dict[str, str], s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged").write_text("[default\n")
    connect_anew(settings, monkeypatch)
    raised = failure(open_store(s3_bucket).read, "a")
    assert type(raised) is StorageRefused
    assert "the S3 client cannot use its settings (" in str(raised)


@pytest.mark.parametrize(
    "settings",
    [
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "missing", "AWS_ROLE_ARN": "arn:aws:iam::1:role/writer"},
        {"AWS_CONFIG_FILE": "config"},
    ],
    ids=str,
)
def test_credentials_that_cannot_be_read_make_no_object_absent(
    settings: dict[str, str], s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").write_text("[default]\ncredential_process = echo no JSON\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    connect_anew(settings, monkeypatch)
    store = open_store(s3_bucket)
    for request in (store.exists, store.read):
        assert type(failure(request, "a")) is StorageRefused


def test_uri_with_credentials_is_refused_without_them() -> None:
    for user in ("user:my word", "user:wo/rd", "user:'word'"):
        raised = failure(lambda: open_store(f"s3://{user}@bucket/a"))  # noqa: B023  # is called at once
        assert str(raised).startswith("s3://***@bucket/a: contains credentials")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["refuses", "swallows", "silent"])
def test_endpoint_that_does_not_answer_means_try_again(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with ExitStack() as resources:
        log_in(S3Server(f"http://127.0.0.1:{dead_port(kind, resources)}"), monkeypatch)
        store = open_store("s3://bucket/run")
        for raised in _failures(store):
            assert type(raised) is TryAgain
            assert "s3://bucket/run/a" in str(raised)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt of a second instead of many: how long is another test's business."""
    settings = {
        "connect_timeout": 0.5,
        "read_timeout": 0.5,
        "retries": {"mode": "standard", "total_max_attempts": 1},
    }
    monkeypatch.setitem(S3_OPTIONS, "config_kwargs", settings)
    monkeypatch.setattr(filesystem, "CALL_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(filesystem, "S3FS_ATTEMPTS", 1)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubS3]:
    """A store that fails on request, in place of the real one."""
    with stub_s3() as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        yield store


def test_requests_that_are_repeated_and_operations_that_fail_are_counted(
    stub: StubS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    retries = Counter("retries", "-", registry=registry)
    errors = Counter("errors", "-", ["operation"], registry=registry)
    monkeypatch.setattr(STORAGE_RETRIES, "series", retries)
    monkeypatch.setattr(STORAGE_ERRORS, "series", errors)
    store = open_store("s3://bucket/run")
    stub.faults.extend([SLOW_DOWN, (500, "InternalError")])
    assert store.create("a", b"x")
    assert not store.exists("b")
    assert registry.get_sample_value("retries_total") == 2

    stub.faults.append(EXPIRED)
    with pytest.raises(TryAgain):
        store.read("a")
    assert registry.get_sample_value("errors_total", {"operation": "read"}) == 1


def test_write_meeting_a_conflict_is_repeated(stub: StubS3) -> None:
    stub.faults.extend([CONFLICT, CONFLICT])
    assert open_store("s3://bucket/run").create("a", b"x")
    assert stub.objects == {"/bucket/run/a": b"x"}


def test_answer_cut_off_in_its_middle_is_read_again(stub: StubS3) -> None:
    stub.objects["/bucket/run/a"] = b"x" * 10_000
    stub.faults.append("cut")
    assert open_store("s3://bucket/run").read("a") == b"x" * 10_000


def test_renewed_credentials_are_those_of_the_next_store_in_the_same_process(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "earlier")
    forget_connections()
    assert type(failure(open_store(s3_bucket).create, "a", b"x")) is StorageRefused
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", WRITER.key)
    assert open_store(s3_bucket).create("a", b"x")


def test_listing_has_the_objects_and_folders_of_one_level(s3_bucket: str) -> None:
    store = open_store(f"{s3_bucket}/run")
    store.create("folder/a", b"x")
    store.create("b", b"xyz")
    entries = {info.key: (info.is_folder, info.size) for info in store.list_folder("")}
    assert entries == {"folder": (True, 0), "b": (False, 3)}
    assert list(store.list_folder("absent")) == []


def failure(action: Callable[..., object], *arguments: object) -> KilnError:
    """What the action raises."""
    with pytest.raises(KilnError) as raised:
        action(*arguments)
    return raised.value


class Hostile:
    """A file system whose listing has whatever keys somebody wrote."""

    async_impl = False
    protocol = "hostile"

    def ls(self, path: str, **_: object) -> list[dict[str, Any]]:
        keys = [
            f"{path}/good",
            f"{path}/..",
            f"{path}/.",
            f"{path}//",
            f"{path}/../other",
            "bucket/elsewhere",
            path,
        ]
        return [{"name": key, "type": "file", "size": 3, "LastModified": 7} for key in keys]


def test_listing_omits_keys_that_lead_out_of_the_folder() -> None:
    store = ObjectStore("s3://bucket/run", "bucket/run", Hostile())
    assert [info.key for info in store.list_folder("images")] == ["images/good"]
    assert list(store.list_folder("")) == [ObjectInfo("good", False, 3, 7.0)]
