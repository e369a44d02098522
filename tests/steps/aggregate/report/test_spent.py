"""Where a run's time went, as a table, in words and as a picture."""

import io

import pytest
from PIL import Image as Pillow

from imagekiln.steps.aggregate.report.charts import StackedBarPlot
from imagekiln.steps.aggregate.report.plots import HEIGHT, LIGHT_SCHEME, WIDTH, draw_plot
from imagekiln.steps.aggregate.report.time_use import MIN_PLOT_SECONDS, TimeUse, summarize_time_use
from imagekiln.steps.aggregate.throughput import DeviceUsage
from imagekiln.steps.runs.stats import StageSeconds

TOOK = StageSeconds(
    total=1000.0, load=50.0, compile=20.0, text=10.0, denoise=700.0, decode=100.0, copy=10.0,
    denoise_waits=100.0, encode=400.0, write=30.0,
)  # fmt: skip


def _spent(took: StageSeconds = TOOK, used: DeviceUsage | None = None) -> TimeUse:
    found = summarize_time_use(took, used or DeviceUsage())
    assert found is not None
    return found


def test_stages_in_turn_add_up_to_all_of_the_time() -> None:
    shares = {each.name: each.share for each in _spent().sequential}
    assert shares["denoise"] == 0.7
    assert shares["wait"] == 0.1
    assert shares["begin and end"] == pytest.approx(0.02)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_what_runs_beside_the_device_is_told_apart() -> None:
    assert [(each.name, each.value, each.share) for each in _spent().concurrent] == [
        ("encode and hash", "7 min", 0.4),
        ("write parts", "30 s", 0.03),
        ("copy pixels", "10 s", 0.01),
    ]


def test_texts_that_were_encoded_beside_a_batch_are_told_there() -> None:
    found = _spent(
        StageSeconds(total=110.0, load=10.0, text=20.0, denoise=80.0, decode=15.0),
        DeviceUsage(busy=0.99),
    )
    shares = {each.name: each.share for each in found.sequential}
    assert shares["encode texts"] == pytest.approx(
        4 / 110
    )  # the device computed for 99 s, 95 of them at pictures
    assert found.concurrent[-1].name == "encode texts, on the device"
    assert found.concurrent[-1].share == pytest.approx(16 / 110)


def test_every_share_that_is_drawn_is_said_in_words() -> None:
    found = _spent()
    assert isinstance(found.chart.plot, StackedBarPlot)
    for each in (*found.sequential, *found.concurrent):
        assert each.name in found.chart.text


def test_a_stage_that_took_nothing_has_no_line() -> None:
    found = _spent(StageSeconds(total=100.0, denoise=60.0, decode=40.0))
    assert [each.name for each in found.sequential] == ["denoise", "decode"]
    assert "compile" not in found.chart.text


def test_time_of_a_version_that_knew_fewer_stages_is_named_as_it_was() -> None:
    found = _spent(StageSeconds(total=100.0, load=5.0, denoise=90.0))
    assert [each.name for each in found.sequential] == [
        "load the model",
        "text, denoise, decode",
        "begin and end",
    ]


def test_a_short_run_has_no_picture_and_a_silent_one_nothing() -> None:
    assert _spent(StageSeconds(total=MIN_PLOT_SECONDS - 1)).chart.plot is None
    assert summarize_time_use(StageSeconds(), DeviceUsage()) is None


def test_a_stage_keeps_its_colour_where_others_are_missing() -> None:
    denoising = tuple(bytes.fromhex(LIGHT_SCHEME.parts[3][1:]))
    assert denoising in _colours(TOOK)
    assert denoising in _colours(StageSeconds(total=100.0, denoise=90.0, decode=10.0))
    assert denoising not in _colours(StageSeconds(total=100.0, load=90.0, decode=10.0))


def _colours(took: StageSeconds) -> set[object]:
    drawing = _spent(took).chart.plot
    assert drawing is not None
    with Pillow.open(io.BytesIO(draw_plot(drawing, LIGHT_SCHEME))) as picture:
        assert picture.size == (2 * WIDTH, 2 * HEIGHT)
        found = picture.convert("RGB").getcolors(1 << 20)
    return {colour for _, colour in found or []}
