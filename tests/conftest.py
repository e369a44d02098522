"""Fixtures that every test may ask for."""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from zlib import crc32

import botocore.session
import hypothesis
import pytest
from botocore.loaders import create_loader
from urllib3.util.retry import Retry

from imagekiln.workflows.client import http
from tests import kube as kubes
from tests import s3

# Libraries whose import takes seconds. `make check` does without them.
HEAVY_LIBRARIES = {"torch", "diffusers", "transformers"}

# A test passes on a busy machine.
hypothesis.settings.register_profile(
    "at any speed",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("at any speed")


class HeavyImports(MetaPathFinder):
    """Skips whatever test or file of tests imports a heavy library in this process."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  # as of every finder
        target: object = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find nothing. Skips the test if a heavy library is looked for."""
        if fullname in HEAVY_LIBRARIES:
            pytest.skip(f"needs {fullname}", allow_module_level=True)
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make check`."""
    parser.addoption("--light", action="store_true", help="Skip what imports torch.")


def pytest_configure(config: pytest.Config) -> None:
    """Look for heavy imports first, since whichever finder comes first decides."""
    if config.getoption("--light"):
        sys.meta_path.insert(0, HeavyImports())


@pytest.fixture(scope="session", autouse=True)
def one_creation_time() -> Iterator[None]:
    """Let all plans have one time, so that runs of one job have equal bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Let PyTorch compute with one thread, here and in processes, so that bytes are equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_description_of_s3() -> Iterator[None]:
    """Let all S3 clients share what is parsed for the first one: its files are a megabyte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(create_loader))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Let nothing wait for the disk: what a power cut would lose, no test of this process reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare every garbage collection the imported libraries: a tenth of all CPU time.

    Those while they are imported take another three seconds of each process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-slow` what is beyond `quick_cases`, before slow tests are deselected.

    Which cases stay depends on the test's name, so that of a parameter that many tests share, such
    as the family of a model, each value is tried by some of them.
    """
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("quick_cases") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test, its_cases in cases.items():
        marker = its_cases[0].get_closest_marker("quick_cases")
        assert marker is not None
        (count,) = marker.args
        first = crc32(test.encode())
        for place, case in enumerate(its_cases):
            if (place - first) % len(its_cases) >= count:
                case.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Spare later collections what outlives a file of tests too, such as libraries it loaded."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Return to the collector what was spared, so that extension modules can free it."""
    gc.unfreeze()
    if session.config.getoption("--light"):
        assert not HEAVY_LIBRARIES & sys.modules.keys(), "a test imported what it should skip"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """An S3 server, started when the first test asks for it."""
    with s3.s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, s3://test-..., whose credentials are in the environment."""
    s3.log_in(s3_server, monkeypatch)
    return f"s3://{s3_server.make_bucket()}"


@pytest.fixture(params=["disk", "s3"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder: once on this disk, once in an S3 bucket."""
    return (
        str(tmp_path / "store")
        if request.param == "disk"
        else f"{request.getfixturevalue('s3_bucket')}/store"
    )


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> Iterator[kubes.Kube]:
    """A fake cluster with all that the profile `gpu` needs. Failed requests are not repeated."""
    monkeypatch.setattr(http, "MAX_RETRIES", 0)
    with kubes.serving(kubes.healthy()) as serving:
        yield serving


@pytest.fixture
def retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed HTTP requests be repeated as often as always, but without waiting."""
    monkeypatch.setattr(Retry, "get_backoff_time", lambda _: 0.0)
