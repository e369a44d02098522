"""The report: totals that are right, and untrusted text that stays text."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise, product
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from imagekiln.steps.aggregate.device_time import Spending, UseSeconds, summarize_throughput
from imagekiln.steps.aggregate.image_counts import Bin, Distributions, FailureCause, Histogram
from imagekiln.steps.aggregate.report.page import ReportData, render_report
from imagekiln.steps.aggregate.report.pictures import Pictures
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.imaging.measures import ImageMeasures
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.image import ImageQuality
from imagekiln.steps.runs.keys import REPORT_KEY, part_key
from imagekiln.steps.runs.stats import ShardStats, StageSeconds
from imagekiln.steps.runtime.figures import format_duration
from imagekiln.steps.runtime.sanitize import sanitize_page_text as visible
from imagekiln.steps.storage import open_store
from tests.runs import PROMPTS, encoded, fill, finished, not_ok, planned, settings
from tests.steps.aggregate.tables import manifest

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</title></figcaption><iframe src=//evil.example></iframe>",
    "javascript:alert(1) data:text/html,<b>",
    "{{ 7 * 7 }} {% include '/etc/passwd' %} <!--",
    "a nul \x00 and \x1b[31mred\x1b[0m and \x9b31m and \x07",
    "\u202eright to left\u202c &lt;b&gt; &amp;",
    "two\nlines\tand a tab",
]
LINKS = ("src", "srcset", "href", "action", "data", "poster", "background")


class Page(HTMLParser):
    """What a browser makes of a page: its tags with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def after(self, text: str) -> str:
        return self.texts[self.texts.index(text) + 1]


def _html(planned_run: Path | str) -> str:
    return open_store(str(planned_run)).read(REPORT_KEY).decode()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> PlanResult:
    """An aggregated run whose prompts and errors want to be more than text."""
    scratch = tmp_path_factory.mktemp("hostile")
    rows = [{"prompt": prompt, "seed": place} for place, prompt in enumerate([*HOSTILE, *HOSTILE])]
    planned_run = planned(
        scratch, str(scratch / "out"), rows, shard={"images": 100}, limits={"failed_share": 1.0}
    )
    fill(
        planned_run,
        {place: not_ok(place, error=f"ValueError: {text}") for place, text in enumerate(HOSTILE)},
    )
    aggregate(planned_run.uri)
    return planned_run


def test_prompts_and_errors_are_shown_as_they_were_written(hostile: PlanResult) -> None:
    page = Page(_html(hostile.uri))
    captions = [text for text in page.texts if text in {visible(prompt) for prompt in HOSTILE}]
    assert sorted(captions) == sorted(
        2 * [visible(prompt) for prompt in HOSTILE]
    )  # failed once, made once
    assert {image["alt"] for image in page.named("img")} == {visible(prompt) for prompt in HOSTILE}
    assert visible(f"ValueError: {HOSTILE[0]}") in page.texts


def test_no_text_becomes_a_tag_or_an_attribute(hostile: PlanResult) -> None:
    harmless, page = Page(_plain_html(hostile)), Page(_html(hostile.uri))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in harmless.tags}
    assert {name for _, attributes in page.tags for name in attributes} <= {
        name for _, attributes in harmless.tags for name in attributes
    }
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    html = _html(hostile.uri)
    for word in ("<script", "<iframe", "<link", "@import", "url("):
        assert word not in html.lower()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", html)
    for image in page.named("img"):
        assert image["alt"].strip()
        assert (image["width"], image["height"]) == ("16", "16")


def _plain_html(hostile: PlanResult) -> str:
    """The report of the same run, had its prompts and errors been harmless."""
    scratch = Path(hostile.uri).parent.parent / "plain"
    rows = [{"prompt": f"number {place}"} for place in range(2 * len(HOSTILE))]
    planned_run = planned(
        scratch, str(scratch / "out"), rows, shard={"images": 100}, limits={"failed_share": 1.0}
    )
    fill(
        planned_run,
        {place: not_ok(place, error=f"ValueError: {place}") for place in range(len(HOSTILE))},
    )
    aggregate(planned_run.uri)
    return _html(planned_run.uri)


def test_links_are_relative_to_files_that_are_there(hostile: PlanResult) -> None:
    page = Page(_html(hostile.uri))
    places = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    result = [
        (name, value) for _, each in page.tags for name, value in each.items() if name in LINKS
    ]
    within = [value for _, value in result if value.startswith("#")]
    links = [value for _, value in result if not value.startswith("#")]
    assert within
    assert {value[1:] for value in within} <= places
    assert len(links) == 2 * len(HOSTILE)  # a thumbnail of each image, and the image
    stored = {encoded(place % 4).content for place in range(len(HOSTILE), 2 * len(HOSTILE))}
    images = [link for link in links if link.startswith("images/")]
    assert {(Path(hostile.uri) / "report" / image).read_bytes() for image in images} == stored
    for link in links:
        parts = urlsplit(link)
        assert (parts.scheme, parts.netloc) == ("", "")
        assert not link.startswith("/")
        assert (Path(hostile.uri) / "report" / link).is_file()


@pytest.fixture(scope="module")
def summary(hostile: PlanResult) -> Summary:
    """The summary of the hostile run."""
    return load_summary(open_store(hostile.uri))


def test_large_images_are_not_all_copied_beside_the_report(
    hostile: PlanResult, summary: Summary
) -> None:
    size = {"width": [4096] * 4, "height": [4096] * 4, "byte_size": [50_000_000] * 4}
    samples = manifest(4, contrast=[0.1] * 4, **size).to_pylist()
    found = replace(summary, marks={"low_contrast": 1})
    pictures = Pictures(samples, {"low_contrast": samples[3:]})
    data = ReportData("run", hostile.plan, found, pictures)
    page = Page(render_report(data))
    assert list(data.full_images) == [samples[3]["image_id"], samples[0]["image_id"]]
    links = [link["href"] for link in page.named("a") if link["href"].startswith("images/")]
    assert len(links) == 3  # the marked image is shown twice


def test_totals_are_those_of_the_summary(tmp_path: Path) -> None:
    rows = [*PROMPTS[:10], {"prompt": "", "id": "empty"}, PROMPTS[3], {"prompt": "word " * 60}]
    planned_run = planned(
        tmp_path, str(tmp_path / "out"), rows, limits={"rejected_share": 1.0, "failed_share": 1.0}
    )
    fill(planned_run, {1: not_ok(1), 2: not_ok(2), 6: not_ok(6, "blank", "one colour")})
    open_store(planned_run.uri).remove(part_key(1, 0))
    with pytest.raises(Incomplete):
        aggregate(planned_run.uri)
    page = Page(_html(planned_run.uri))
    assert page.after("Missing").startswith(f"1 part is missing: {part_key(1, 0)}")
    order = _places(_html(planned_run.uri), "verdict", "missing", "failures", "gates", "sheet")
    assert order == sorted(order)
    tiles = page.texts[page.texts.index("prompt rows") :]
    expected = {
        "ok": "5",
        "failed": "2",
        "blank": "1",
        "missing": "3",
        "rows rejected": "1",
        "duplicate images, generated once": "1",
        "prompts truncated": "1",
    }
    assert {label: tiles[tiles.index(label) + 1] for label in expected} == expected


def test_a_finished_run_shows_its_model_device_and_time_by_stage(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    summary = load_summary(store)
    page = Page(_html(tmp_path / "run"))
    assert page.texts.count(summary.run_id) == 2  # as title and as heading
    assert any(text.endswith("float32, on cpu. PNG, lossless, in Parquet.") for text in page.texts)
    assert page.after("encode and hash") == format_duration(summary.seconds.encode)
    assert "Finished: all 20 images are ok." in page.texts
    assert "No image was found by blank, safety, low_contrast, over_saturated." in page.texts
    order = _places(_html(tmp_path / "run"), "verdict", "sheet", "gates", "output", "time")
    assert order == sorted(order)


def test_the_page_of_hostile_text_is_as_large_as_that_of_harmless_text(tmp_path: Path) -> None:
    rows = [{"prompt": "<b>" * 1300 + str(place)} for place in range(4)]
    limits = {"failed_share": 1.0}
    planned_run = planned(tmp_path, str(tmp_path / "out"), rows, limits=limits)
    fill(planned_run, {0: not_ok(0, error="x" * 150_000)})
    aggregate(planned_run.uri)
    assert len(_html(planned_run.uri)) < 40_000
    assert "… and 3,401 more characters" in _html(planned_run.uri)


def test_every_cause_has_a_few_images_as_examples(tmp_path: Path) -> None:
    planned_run = planned(
        tmp_path, str(tmp_path / "out"), PROMPTS[:8], limits={"failed_share": 1.0}
    )
    fill(planned_run, {place: not_ok(place) for place in range(5)})
    summary = aggregate(planned_run.uri)
    assert [each.row for each in summary.failures[0].examples] == [0, 1, 2]
    page = Page(_html(planned_run.uri))
    for example in summary.failures[0].examples:
        place = page.texts.index(example.image_id)
        own = [example.prompt, "id", f"row-{example.row}", f", row {example.row}"]
        assert page.texts[place - 5 : place - 1] == own
        assert page.texts[place + 2] == example.part == part_key(0, 0)


def test_headings_are_in_order_and_every_table_has_a_caption_and_headers(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    page = Page(_html(tmp_path / "run"))
    tags = [tag for tag, _ in page.tags]
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert {"header", "nav", "main", "footer"} <= set(tags)
    assert tags.count("table") == tags.count("caption") == tags.count("thead")
    assert all("scope" in header for header in page.named("th"))


@pytest.fixture(scope="module")
def large(hostile: PlanResult, summary: Summary) -> tuple[ReportData, str]:
    """The figures of a run of ten million images in 2,000 shards, and its page."""
    stats = [
        ShardStats(number, 1, 5000, 79, 8, "H100", StageSeconds(3000.0 + 2 * number))
        for number in range(2000)
    ]
    bins = Histogram(1, 64, tuple(Bin(2.0**place, 2.0 ** (place + 1), 10**6) for place in range(6)))
    failures = tuple(
        FailureCause("failed", f"cause {place}", 10_000 - place) for place in range(100)
    )
    sums = replace(
        summary,
        images=10_000_000,
        statuses={"ok": 9_000_000, "failed": 1_000_000},
        failures=failures,
        throughput=summarize_throughput(stats),
        distributions=Distributions(bins, bins),
        marks={"low_contrast": 53_000},
        spending=Spending(UseSeconds(total=3.6e6), 2500.0),
        device_hours=1000.0,
        elapsed_seconds=20 * 3600.0,
        started_at=1_795_219_440.0,
        ended_at=1_795_219_440.0 + 20 * 3600,
        seconds=StageSeconds(
            total=3.6e6, load=1e5, denoise=3e6, decode=3e5, denoise_waits=1e5, encode=2e6, write=1e5
        ),
        busy_share=0.95,
        peak_memory=31_400_000_000,
    )
    contents = ReportData("s3://bucket/a run", hostile.plan, sums, Pictures())
    return contents, render_report(contents)


def test_ten_million_images_in_two_thousand_shards_are_a_short_page(
    large: tuple[ReportData, str],
) -> None:
    contents, html = large
    assert render_report(contents) == html
    page = Page(html)
    assert len(large[1]) < 50_000
    assert page.after("images planned") == "10,000,000"
    assert "53,000" in page.texts
    assert page.after("cost in the currency of the price, 2.50 per device-hour") == "2,500.00"
    assert "15 more causes" in page.texts
    assert any(text.startswith("And at least 80 more causes") for text in page.texts)
    assert page.after("busy share of the time after loading") == "95 %"
    assert page.after("peak memory of a device") == "31.4 GB"
    assert any(text.startswith("The device was the limit, as it should be") for text in page.texts)
    assert page.after("denoise") == "833 h"
    assert page.after("Length of the prompt, in characters: 1 to 64") == "value"
    assert page.after("32 to 64") == "1,000,000"
    assert page.after("device time, added up") == "1,000 h"
    assert page.after("wall-clock time") == "20 h 0 min"
    assert page.after("s3://bucket/a run") == ", from 2026-11-21 00:04 UTC to 2026-11-21 20:04 UTC"


def _places(html: str, *names: str) -> list[int]:
    """Where sections begin."""
    return [html.index(f'<h2 id="{name}"') for name in names]


def test_a_sweep_is_its_grid_and_other_images_of_a_prompt_say_their_settings(
    tmp_path: Path,
) -> None:
    sweep = {"guidance": [1.5, 2.5], "steps": [1, 2]}
    template = {"template": "a {red|blue} kettle", "combinations": "all", "sweep": sweep}
    twice = {"seed": 7, "images_per_prompt": 2}
    plain = settings(tmp_path, str(tmp_path / "out"), defaults=twice)
    run = make_plan(validate_job(plain | {"prompts": template}))
    fill(run)
    aggregate(run.uri)
    html = _html(run.uri)
    order = _places(html, "verdict", "sweep", "sheet", "gates")
    assert order == sorted(order)
    page = Page(html)
    assert len(page.named("img")) == 16
    assert len({image["src"] for image in page.named("img")}) == 16
    captions = re.findall(r"seed \d+, steps (\d), guidance ([\d.]+), 16", " ".join(page.texts))
    assert Counter(captions) == dict.fromkeys(product("12", ("1.5", "2.5")), 2)


def test_of_many_images_some_from_all_over_the_run_are_unfolded(
    hostile: PlanResult, summary: Summary
) -> None:
    size = {"width": [16] * 90, "height": [16] * 90, "byte_size": [1] * 90}
    pictures = Pictures(manifest(90, **size).to_pylist())
    large = replace(summary, images=1000, statuses={"ok": 1000})
    html = render_report(ReportData("run", hostile.plan, large, pictures))
    unfolded, _, folded = html.partition("67 more images")
    assert Page(unfolded).named("img")[-1]["alt"] == "number 88"
    assert (len(Page(unfolded).named("img")), len(Page(folded).named("img"))) == (23, 67)
    assert "A random sample of 90 images" in Page(html).texts


def _marked(tmp_path: Path) -> PlanResult:
    """A run of 8 images, two of them marked by a user's check, with HTML in its reason."""
    rows = [*PROMPTS[:8]]
    check = {"name": "even", "entry": "tests.own_checks:even", "share": 0.1}
    planned_run = planned(
        tmp_path,
        str(tmp_path / "out"),
        rows,
        gates={"checks": [check]},
        limits={"failed_share": 0.5},
    )
    bad = ImageQuality(("even",), "even: <b>odd</b>", ImageMeasures(0.2, 0.1, 0))
    fill(
        planned_run,
        {
            1: replace(encoded(1), quality=bad),
            3: not_ok(3, "filtered", "unsafe"),
            5: replace(encoded(5), quality=bad),
        },
    )
    aggregate(planned_run.uri, accept=["even"])
    return planned_run


def test_a_gate_is_shown_with_its_share_and_images_that_it_marked(tmp_path: Path) -> None:
    planned_run = _marked(tmp_path)
    page = Page(_html(planned_run.uri))
    assert page.texts.count("<b>odd</b>") == 2
    assert "over 10 %, accepted" in page.texts
    assert page.texts.count("even") == 2 + 2  # in the table and over its pictures, and on the sheet
    pictures = sorted({image["src"] for image in page.named("img")})
    assert len(page.named("img")) == 7 + 2
    assert pictures == [f"thumbnails/{place:04d}.jpg" for place in range(7)]
    assert all((Path(planned_run.uri) / "report" / picture).is_file() for picture in pictures)
    assert len([image for image in page.named("img") if image["alt"] == PROMPTS[3]["prompt"]]) == 0
