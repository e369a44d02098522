"""Steps of a run on S3 over a network that spoils answers: what is whole is never called wrong."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, KilnError, StorageRefused, TryAgain
from imagekiln.steps.generate.start import generate
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.source_files import gather_sources
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.prompts.parser import parse_template
from imagekiln.steps.prompts.wildcards import WildcardFiles
from imagekiln.steps.runs.keys import SUCCESS_KEY, part_key
from imagekiln.steps.storage import open_store, s3_reader
from imagekiln.steps.storage.store import Store
from tests import runs
from tests.disturbance import (
    DENIED,
    EXPIRED_FAULTS,
    PASSING_FAULTS,
    SERVER_FAULTS,
    Disturbance,
    disturbance,
)
from tests.life import read_images
from tests.s3 import S3Server, forget_connections, hurry, log_in

STEPS: dict[str, Callable[[str], object]] = {
    "aggregate": aggregate,
    "verify": verify,
    "generate": lambda uri: generate(uri, 0),
}
PROMPTS = runs.PROMPTS[:10]  # of one shard, in parts of 4, 4 and 2
TAIL_BYTES = 1000  # less than small parts have, so that these are read in ranges as large ones are
MAX_TRIES = 8  # of a step that may have to be tried again at each of its writes
POSITIONS = 3  # of the request from which on all are refused


@pytest.fixture
def network(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disturbance]:
    """A proxy before the server, which spoils nothing yet."""
    monkeypatch.setattr(s3_reader, "TAIL_BYTES", TAIL_BYTES)
    monkeypatch.setattr(s3_reader, "WAIT_SECONDS", 0.0)
    with disturbance(s3_server.endpoint) as proxy:
        log_in(S3Server(proxy.endpoint), monkeypatch)
        yield proxy


@pytest.fixture
def finished(network: Disturbance, s3_server: S3Server, tmp_path: Path) -> PlanResult:
    """A run that was aggregated twice, as every further aggregation then leaves it."""
    run = runs.planned(
        tmp_path, f"s3://{s3_server.make_bucket()}/out", PROMPTS, shard={"images": 100}
    )
    runs.fill(run)
    aggregate(run.uri)
    aggregate(run.uri)
    network.rest()
    return run


def content(store: Store, folder: str = "") -> dict[str, bytes]:
    """Every object of a run but what generate writes of its own work."""
    objects: dict[str, bytes] = {}
    for info in store.list_folder(folder):
        if info.is_folder:
            objects |= content(store, info.key)
        elif not info.key.startswith(("stats/", "account/", "work/", "turns/")):
            objects[info.key] = store.read(info.key)
    return objects


def test_step_whose_first_answer_to_each_request_is_spoiled_ends_as_ever(
    finished: PlanResult, network: Disturbance
) -> None:
    store = open_store(finished.uri)
    undisturbed = content(store)
    for place, (name, step) in enumerate(STEPS.items()):
        for fault, spoil in list(PASSING_FAULTS.items())[place :: len(STEPS)]:  # each in one step
            network.once_each(spoil)
            step(finished.uri)
            assert network.faults > 5, (fault, name)
            network.rest()
            assert content(store) == undisturbed, (fault, name)


@pytest.mark.slow
def test_images_are_read_as_they_are_over_a_network_that_spoils_answers(
    finished: PlanResult, network: Disturbance
) -> None:
    undisturbed = read_images(finished.uri)
    for fault, spoil in PASSING_FAULTS.items():
        network.once_each(spoil)
        assert read_images(finished.uri) == undisturbed, fault


@pytest.mark.slow
def test_prompts_in_a_bucket_are_read_as_they_are_over_a_network_that_spoils_answers(
    network: Disturbance, s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket()
    table = "place\n" + "red house\n" * 20_000  # more than is read at once with its size
    for name, text in {"tables/a.csv": table, "tables/b.csv": "place\nblue sea\n"}.items():
        open_store(f"s3://{bucket}").create(name, text.encode())
    open_store(f"s3://{bucket}").create("wildcards/x/warm.txt", b"red\nblue\n")

    def read() -> list[str]:
        forget_connections()
        sources = gather_sources((f"s3://{bucket}/tables/*.csv", f"s3://{bucket}/tables"), tmp_path)
        wildcards = WildcardFiles(f"s3://{bucket}/wildcards")
        parse_template("__x/*__", wildcards)
        return [wildcards.digest, *(f"{source.uri} {source.sha256}" for source in sources)]

    undisturbed = read()
    assert len(undisturbed) == 1 + 4
    for fault, spoil in PASSING_FAULTS.items():
        network.rest()
        network.once_each(spoil)
        with suppress(TryAgain):  # a list that ends in its middle
            assert read() == undisturbed, fault
        assert network.faults


@pytest.mark.parametrize("look", [0, 1])
def test_refusal_that_passes_hides_no_table_whichever_look_it_meets(
    look: int, network: Disturbance, s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.make_bucket()
    open_store(f"s3://{bucket}").create("tables/a.csv", b"place\nred house\n")
    forget_connections()
    network.rest()
    network.from_request(f"HEAD /{bucket}/tables", look, DENIED)
    (source,) = gather_sources((f"s3://{bucket}/tables/*.csv",), tmp_path)
    assert source.uri == f"s3://{bucket}/tables/a.csv"
    assert network.faults == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_store_that_asks_to_slow_down_for_a_minute_costs_at_most_tries(
    finished: PlanResult, network: Disturbance, name: str
) -> None:
    """With the waits of clients as they are: each request waits, or the step says try again."""
    store = open_store(finished.uri)
    undisturbed = content(store)
    network.rest()
    end = time.monotonic() + 60
    slow_down = SERVER_FAULTS["slow down"]
    network.choose = lambda _: slow_down if time.monotonic() < end else None
    try_until_done(lambda: STEPS[name](finished.uri))
    assert time.monotonic() > end
    assert network.faults > 5
    assert content(store) == undisturbed


@pytest.mark.slow
def test_what_is_missing_is_found_and_made_without_a_list(
    finished: PlanResult, network: Disturbance
) -> None:
    open_store(finished.uri).remove(part_key(0, 1))
    network.rest()
    made = generate(finished.uri, 0)
    assert made is not None
    assert made.images == 4
    assert not [request for request in network.requests if "list-type" in request]


@pytest.mark.slow
def test_shard_whose_writes_meet_a_fault_is_drawn_as_ever_or_to_be_tried_again(
    finished: PlanResult, network: Disturbance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write meets the fault as it is tried for the first time."""
    hurry(monkeypatch)
    undisturbed = drawn_again(finished)
    for fault, spoil in (SERVER_FAULTS | EXPIRED_FAULTS).items():
        network.once_each(spoil, methods=("PUT",))
        assert drawn_again(finished) == undisturbed, fault
        assert network.faults >= len(undisturbed), fault
        network.rest()


def drawn_again(run: PlanResult) -> dict[str, bytes]:
    """The parts of the shard, each drawn anew, in as many tries as that takes."""
    store = open_store(run.uri)
    keys = [part_key(0, number) for number in range(3)]
    for key in keys:
        store.remove(key)
    try_until_done(lambda: generate(run.uri, 0))
    return {key: store.read(key) for key in keys}


def try_until_done(step: Callable[[], object]) -> None:
    """Do it again for as long as it says so."""
    for _ in range(MAX_TRIES):
        with suppress(TryAgain):
            step()
            return
    raise AssertionError(f"not done after {MAX_TRIES} tries")


@pytest.mark.slow
def test_part_is_made_again_over_a_network_that_spoils_answers(
    finished: PlanResult, network: Disturbance
) -> None:
    store = open_store(finished.uri)
    store.remove(part_key(0, 1))
    with pytest.raises(Incomplete):
        verify(finished.uri)
    network.once_each(PASSING_FAULTS["garbage"])
    made = generate(finished.uri, 0)
    assert made is not None
    assert made.images == 4
    network.rest()
    aggregate(finished.uri)
    assert verify(finished.uri).ok == len(PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "generate",
        pytest.param("aggregate", marks=pytest.mark.slow),
        pytest.param("verify", marks=pytest.mark.slow),
    ],
)
def test_step_that_is_refused_says_so_and_takes_nothing_for_wrong(
    finished: PlanResult, network: Disturbance, name: str
) -> None:
    store = open_store(finished.uri)
    undisturbed = content(store)
    network.rest()
    STEPS[name](finished.uri)
    requests = [request for request in network.requests if request.startswith(("GET", "HEAD"))]

    for fault, kind, sentence in (
        (DENIED, StorageRefused, "access was refused"),
        (EXPIRED_FAULTS["invalid"], TryAgain, "the credentials have expired. Renew them"),
    ):
        refusals = []
        for position in range(POSITIONS):
            network.always_from(position * len(requests) // POSITIONS, fault)
            try:
                STEPS[name](finished.uri)
            except KilnError as error:
                refusals.append(error)
            network.rest()
            assert store.exists(SUCCESS_KEY)
        assert len(refusals) >= POSITIONS // 3  # a step can do without what it reads last
        for raised in refusals:
            assert type(raised) is kind
            assert sentence in str(raised)
            assert "Restore" not in str(raised)
    assert content(store) == undisturbed
