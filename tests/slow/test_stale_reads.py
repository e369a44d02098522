"""A store that once gives an older version of an object, or an older list, as caches before it may.

Stores that we know give the newest. What such an answer can cost: images that are drawn again.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.maintain.verify import verify
from tests.disturbance import Answer, Disturbance, Fault, Forward, disturbance
from tests.life import Content, Life, lasting, make_missing
from tests.s3 import S3Server, hurry, log_in

RANGE_PATTERN = re.compile(r" bytes=(\d*)-(\d*)$")
# What plans more than it would have, by an older manifest or list of image ids: the run it plans.
PLANNING_STEPS = {"retry again": "first", "plan second": "second"}
LISTS = 8  # of a step, some of those of each
ENTRIES_PATTERN = re.compile(rb"<(Contents|CommonPrefixes)>.*?</\1>", re.DOTALL)


@pytest.fixture
def network(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disturbance]:
    """A proxy before the server, which spoils nothing yet."""
    hurry(monkeypatch)
    with disturbance(s3_server.endpoint) as proxy:
        log_in(S3Server(proxy.endpoint), monkeypatch)
        yield proxy


@dataclass(slots=True)
class Stale:
    """Gives the first answer to requests for a path as it once was; all others are the server's."""

    path: str
    body: bytes
    answers: list[Answer] = field(default_factory=list)

    def choose(self, request: str) -> Fault | None:
        """The fault of a request, if it is the first for the path."""
        if self.answers or not request.startswith(f"GET {self.path} "):
            return None
        start, end = byte_range(request, len(self.body))

        def fault(forward: Forward) -> Answer:
            """An answer as whole and as consistent as the server's own."""
            etag = hashlib.md5(self.body, usedforsecurity=False).hexdigest()
            answer = forward().with_body(self.body[start:end]).with_header("ETag", f'"{etag}"')
            place = f"bytes {start}-{end - 1}/{len(self.body)}"
            self.answers.append(answer.with_header("Content-Range", place))
            return self.answers[0]

        return fault


def byte_range(request: str, size: int) -> tuple[int, int]:
    """The first byte that a request asks for of so many, and the one after the last."""
    match = RANGE_PATTERN.search(request)
    if match is None:
        return 0, size
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def older_versions(life: Life) -> Iterator[tuple[str, str, bytes]]:
    """Each step, and the paths that it reads of what a step before replaced, as they were."""
    newest: Content = {}
    older: Content = {}
    folder = f"/{life.output.removeprefix('s3://')}"
    for step in life.steps:
        for key, body in life.before[step].items():
            if newest.setdefault(key, body) != body:
                older[key] = newest[key]
                newest[key] = body
        for key in older.keys() & life.before[step].keys():
            if f"GET {folder}/{key}" in life.requests[step]:
                yield step, f"{folder}/{key}", older[key]


def test_an_older_version_that_is_given_once_loses_nothing(
    network: Disturbance, s3_server: S3Server, tmp_path: Path
) -> None:
    life = Life(tmp_path, s3_server.make_bucket(), s3_server)
    life.record(network)
    steps = set()
    for step, path, body in older_versions(life):
        life.restore(life.before[step])
        stale = Stale(path, body)
        network.choose = stale.choose
        with suppress(AssertionError if step in life.reading_steps else TryAgain):
            life.do(step)  # what only reads may find what was
        assert stale.answers, (step, path)
        network.rest()
        steps.add(step)
        _require_whole(life, step, path)
    assert {"aggregate rounds", "verify round", "read", "gc", *PLANNING_STEPS} <= steps


def _require_whole(life: Life, step: str, path: str) -> None:
    """The step, done again, leaves what it always does, or a run that has more images to make."""
    life.do(step)
    content = lasting(life.content())
    expected = lasting(life.after[step])
    if content == expected:
        return
    run = PLANNING_STEPS[step]
    before = lasting(life.before[step])
    written = {key for key in content if content[key] != before.get(key)}
    assert all(key.startswith(f"{run}/") for key in written), path
    assert before.keys() <= content.keys(), path
    make_missing(life.uri(run))
    summary = aggregate(life.uri(run))
    assert summary.ok == summary.images, (step, path)
    assert verify(life.uri(run)).ok == summary.ok


@pytest.mark.parametrize("step", ["list", "gc"])
def test_a_list_that_lacks_what_is_new_loses_nothing(
    network: Disturbance, s3_server: S3Server, tmp_path: Path, step: str
) -> None:
    life = Life(tmp_path, s3_server.make_bucket(), s3_server)
    life.record(network)
    lists = sorted({request for request in life.requests[step] if "list-type" in request})
    for request in lists[:: max(1, len(lists) // LISTS)]:
        life.restore(life.before[step])
        network.from_request(request, 0, _without_entries)
        with suppress(AssertionError if step in life.reading_steps else TryAgain):
            life.do(step)
        network.rest()
        life.do(step)
        assert lasting(life.content()) == lasting(life.after[step]), request
    assert lists


def _without_entries(forward: Forward) -> Answer:
    answer = forward()
    return answer.with_body(ENTRIES_PATTERN.sub(b"", answer.body))
