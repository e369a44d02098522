"""An S3 server on loopback: SeaweedFS, which honors conditional PUT and checks signatures."""

import json
import os
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from botocore.retries.standard import ExponentialBackoff

from imagekiln.steps.storage import filesystem

READY_SECONDS = 30.0
PORTS = 8
# By default, SeaweedFS gives each bucket seven volumes, and a thousand are soon used up.
ONE_VOLUME_A_BUCKET = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
# The shell ends the server when its standard input closes, so also when the test process dies.
# It sends SIGKILL, because SeaweedFS otherwise takes 20 s to end, and its data is not needed.
SUPERVISOR = '"$@" & read _; kill -9 $!; wait'


# For a test of what stands on the stores, of which others nearby run on both.
S3_AMONG_SLOW = pytest.mark.parametrize(
    "store_uri", ["disk", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the server."""

    key: str
    secret: str


WRITER = Login("writer", "good on loopback")
READER = Login("reader", "good for reading")
# One who may do what the policy of a bucket says.
POD = Login("pod", "good for a batch")


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server listens."""

    endpoint: str

    def environment(self, login: Login = WRITER) -> dict[str, str]:
        """The variables that make any AWS client use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": login.key,
            "AWS_SECRET_ACCESS_KEY": login.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def make_bucket(self) -> str:
        """A new, empty bucket's name."""
        name = f"test-{uuid4().hex[:12]}"
        _administration(self.endpoint).mkdir(name)
        return name

    def allow(self, login: Login, bucket: str, rights: Sequence[tuple[str, str]]) -> None:
        """Let a user do these actions, each on what its text after the bucket's name says."""
        statements = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam::000000000000:user/{login.key}"},
                "Action": action,
                "Resource": f"arn:aws:s3:::{bucket}{objects}",
            }
            for action, objects in rights
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        _administration(self.endpoint).call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)


@cache
def _administration(endpoint: str) -> fsspec.AbstractFileSystem:
    """A connection of its own, which no test that logs in or out changes."""
    return fsspec.filesystem(
        "s3",
        endpoint_url=endpoint,
        key=WRITER.key,
        secret=WRITER.secret,
        skip_instance_cache=True,
    )


def log_in(server: S3Server, monkeypatch: pytest.MonkeyPatch, login: Login = WRITER) -> None:
    """Put the server and the login in the environment of this process and its children."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environment(login).items():
        monkeypatch.setenv(name, value)
    forget_connections()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests be repeated as often as always, but at once."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)
    monkeypatch.setattr(filesystem, "CONFLICT_SECONDS", 0.0)


def forget_connections() -> None:
    """Let the next S3 connection read the environment: fsspec keeps one for each set of options."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS with its data in `folder`, running while the block does."""
    program = Path(sysconfig.get_path("scripts")) / "weed"
    if not program.exists():
        raise FileNotFoundError(f"{program}: no SeaweedFS. Run `make install`.")
    ports = _free_ports(PORTS)
    with (folder / "log").open("wb") as log, ExitStack() as after:
        command = ["sh", "-c", SUPERVISOR, "sh", str(program), *_options(folder, ports)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | ONE_VOLUME_A_BUCKET,
            start_new_session=True,
        )
        after.callback(_remove_sockets, ports)
        after.callback(process.communicate, b"\n")
        server = S3Server(f"http://127.0.0.1:{ports[0]}")
        _wait(server.endpoint, process, folder / "log")
        yield server


def _options(folder: Path, ports: list[int]) -> list[str]:
    """The options of `weed`: loopback ports, no telemetry, no automatic buckets."""
    identities = [
        {
            "name": login.key,
            "credentials": [{"accessKey": login.key, "secretKey": login.secret}],
            "actions": actions,
        }
        for login, actions in (
            (WRITER, ["Admin", "Read", "Write", "List"]),
            (READER, ["Read", "List"]),
            (POD, []),
        )
    ]
    (folder / "identities.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir()
    names = ("s3", "master", "volume", "filer")
    listen = [f"-{name}.port={port}" for name, port in zip(names, ports[:4], strict=True)]
    listen += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[4:], strict=True)]
    return [
        "-logtostderr", "server", f"-dir={folder / 'data'}",
        "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *listen,
        "-filer", "-s3", f"-s3.config={folder / 'identities.json'}", "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64", "-volume.max=1000",
    ]  # fmt: skip


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        for server in servers:
            stack.enter_context(server)
        return [server.getsockname()[1] for server in servers]


def _wait(endpoint: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server answers, even if only to demand a signature."""
    until = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(endpoint, timeout=5):  # noqa: S310  # our own loopback address
                return
        except urllib.error.HTTPError as error:
            with error:
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError(f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}")


def _remove_sockets(ports: list[int]) -> None:
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108  # where SeaweedFS puts them
            with suppress(FileNotFoundError):
                path.unlink()
