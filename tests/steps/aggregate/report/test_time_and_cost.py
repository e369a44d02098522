"""The report's section on time and cost, and what limited a run."""

from dataclasses import replace

import pytest

from imagekiln.steps.aggregate.device_time import summarize_throughput
from imagekiln.steps.aggregate.report.tables import ShareTable
from imagekiln.steps.aggregate.report.time_and_cost import (
    Bottleneck,
    break_down_time,
    find_bottleneck,
    slow_shards_table,
    stage_tables,
)
from imagekiln.steps.job.passes import MAX_PASSES
from imagekiln.steps.runs.stats import ShardStats, StageSeconds

SECONDS = StageSeconds(
    total=100.0, load=10.0, compile=5.0, text=6.0, denoise=60.0, decode=10.0, denoise_waits=4.0
)


@pytest.mark.parametrize("busy", [None, 0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("waits", [0.0, 4.0, 500.0])
def test_the_breakdown_adds_up_to_all_of_the_time(busy: float | None, waits: float) -> None:
    took = StageSeconds(
        total=100.0, load=10.0, text=40.0, denoise=60.0, decode=10.0, denoise_waits=waits
    )
    result = break_down_time(took, busy)
    assert min(result.values()) >= 0.0
    assert sum(result.values()) == pytest.approx(100.0) or busy is None


TOOK = StageSeconds(
    total=1000.0, load=50.0, compile=20.0, text=10.0, denoise=700.0, decode=100.0, copy=10.0,
    denoise_waits=100.0, encode=400.0, write=30.0,
)  # fmt: skip


def _shares(table: ShareTable) -> dict[str, float]:
    return {name: share for name, _, share in table.rows}


def test_stages_add_up_to_all_of_the_time_and_concurrent_work_is_listed_apart() -> None:
    sequential, concurrent = stage_tables(TOOK, None)
    shares = _shares(sequential)
    assert shares["denoise"] == 0.7
    assert shares["wait"] == 0.1
    assert shares["start and end"] == pytest.approx(0.02)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(concurrent.rows) == [
        ("encode and hash", "7 min", 0.4),
        ("write parts", "30 s", 0.03),
        ("copy pixels", "10 s", 0.01),
    ]


def test_texts_encoded_during_a_batch_are_concurrent_work() -> None:
    seconds = StageSeconds(total=110.0, load=10.0, text=20.0, denoise=80.0, decode=15.0)
    sequential, concurrent = stage_tables(seconds, 0.99)
    # The device computed for 99 s, 95 of them at pictures.
    assert _shares(sequential)["encode texts"] == pytest.approx(4 / 110)
    assert _shares(concurrent) == {"encode texts, on the device": pytest.approx(16 / 110)}


def test_a_stage_that_took_nothing_has_no_line() -> None:
    seconds = StageSeconds(total=100.0, denoise=60.0, decode=40.0)
    (sequential,) = stage_tables(seconds, None)
    assert list(_shares(sequential)) == ["denoise", "decode"]
    _, concurrent = stage_tables(replace(seconds, safety=10.0), None)
    assert _shares(concurrent) == {"check safety": 0.1}
    assert stage_tables(StageSeconds(), None) == []


@pytest.mark.parametrize(
    ("rates", "title", "slowest"),
    [
        ((), None, []),
        (
            (2.0, 4.0, 4.0),
            "3 shards made 2 to 4 images per second, 4 in the median; 1 made less than 80 % of it.",
            ["0"],
        ),
    ],
)
def test_the_speed_of_shards_is_a_sentence_and_the_slow_ones_are_listed(
    rates: tuple[float, ...], title: str | None, slowest: list[str]
) -> None:
    stats = [
        ShardStats(number, 1, 100, 2, 8, "cpu", StageSeconds(100 / rate))
        for number, rate in enumerate(rates)
    ]
    table = slow_shards_table(summarize_throughput(stats))
    assert (table and table.title) == title
    assert [row[0] for row in (table.rows if table else ())] == slowest


BUSY = 0.97
FINE = StageSeconds(total=1000.0, load=20.0, denoise=850.0, decode=120.0, encode=500.0, write=100.0)


def _bottleneck(used: float | None = BUSY, /, **changes: float) -> Bottleneck:
    result = find_bottleneck(replace(FINE, **changes), used)  # type: ignore[arg-type]  # of floats
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("busy", "kind", "computed"),
    [
        (0.97, "device", "97 % of the time."),
        (0.6, "launching", "60 % of the time after loading"),
        (None, "device", "97 % of the time."),
    ],
)
def test_the_device_is_the_limit_or_it_is_given_too_little(
    busy: float | None, kind: str, computed: str
) -> None:
    result = _bottleneck(busy)
    assert result.kind == kind
    assert computed in result.sentence
    assert (result.advice == "") == (kind == "device")


@pytest.mark.parametrize(
    ("changes", "limit", "share"),
    [
        ({"denoise": 600.0, "denoise_waits": 250.0}, "encoding", "25 %"),
        ({"denoise": 600.0, "denoise_waits": 250.0, "write": 700.0}, "storage", "25 %"),
        ({"denoise": 600.0, "load": 270.0}, "loading", "27 %"),
        ({"denoise": 600.0, "compile": 250.0}, "compiling", "25 %"),
        (
            {"denoise": 600.0, "text": 250.0},
            "texts",
            "23.1 %",
        ),  # the device computed no longer at them
        ({"denoise": 600.0}, "ends", "26 %"),
    ],
)
def test_what_takes_the_most_time_from_the_device_is_named_with_a_remedy(
    changes: dict[str, float], limit: str, share: str
) -> None:
    result = _bottleneck(**changes)
    assert result.kind == limit
    assert share in result.sentence
    assert result.advice


def test_each_pass_has_its_share_of_the_time() -> None:
    passes = {f"pass_{number}": 40.0 for number in range(MAX_PASSES)}
    sequential, _ = stage_tables(replace(FINE, denoise=400.0, passes=passes), BUSY)
    shares = _shares(sequential)
    assert [shares[f"pass {name}"] for name in passes] == [0.04] * MAX_PASSES
    assert sum(shares.values()) == pytest.approx(1)
