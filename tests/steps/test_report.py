"""The report: totals that are right, and untrusted text that stays text."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from imagekiln.steps import names
from imagekiln.steps.aggregate import aggregate
from imagekiln.steps.errors import Incomplete
from imagekiln.steps.planning import Planned
from imagekiln.steps.report import visible
from imagekiln.steps.storage import open_store
from imagekiln.steps.summary import SUMMARY, Summary
from tests.runs import PROMPTS, fill, finished, not_ok, planned

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


def _html(there: Path | str) -> str:
    return open_store(str(there)).read(names.REPORT).decode()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """An aggregated run whose prompts and errors want to be more than text."""
    scratch = tmp_path_factory.mktemp("hostile")
    rows = [{"prompt": prompt, "seed": place} for place, prompt in enumerate([*HOSTILE, *HOSTILE])]
    there = planned(scratch, str(scratch / "out"), rows, shard={"images": 100}, limits={"failed_share": 1.0})
    fill(there, {place: not_ok(place, error=f"ValueError: {text}") for place, text in enumerate(HOSTILE)})
    aggregate(there.uri)
    return there


def test_prompts_and_errors_are_shown_as_they_were_written(hostile: Planned) -> None:
    page = Page(_html(hostile.uri))
    captions = [text for text in page.texts if text in {visible(prompt) for prompt in HOSTILE}]
    assert sorted(captions) == sorted(visible(prompt) for prompt in HOSTILE)
    assert {image["alt"] for image in page.named("img")} == {visible(prompt) for prompt in HOSTILE}
    assert visible(f"ValueError: {HOSTILE[0]}") in page.texts


def test_no_text_becomes_a_tag_or_an_attribute(hostile: Planned) -> None:
    harmless, page = Page(_plain_html(hostile)), Page(_html(hostile.uri))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in harmless.tags}
    assert {name for _, attributes in page.tags for name in attributes} <= {
        name for _, attributes in harmless.tags for name in attributes
    }
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def _plain_html(hostile: Planned) -> str:
    """The report of the same run, had its prompts and errors been harmless."""
    scratch = Path(hostile.uri).parent.parent / "plain"
    rows = [{"prompt": f"number {place}"} for place in range(2 * len(HOSTILE))]
    there = planned(scratch, str(scratch / "out"), rows, shard={"images": 100}, limits={"failed_share": 1.0})
    fill(there, {place: not_ok(place) for place in range(len(HOSTILE))})
    aggregate(there.uri)
    return _html(there.uri)


@pytest.mark.parametrize("word", ["<script", "<iframe", "<link", "@import", "url("])
def test_the_page_brings_in_nothing_from_elsewhere(word: str, hostile: Planned) -> None:
    assert word not in _html(hostile.uri).lower()


def test_links_are_relative_to_files_that_are_there(hostile: Planned) -> None:
    page = Page(_html(hostile.uri))
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(links) == len(HOSTILE)
    for link in links:
        parts = urlsplit(link)
        assert (parts.scheme, parts.netloc) == ("", "")
        assert not link.startswith("/")
        assert (Path(hostile.uri) / "report" / link).is_file()


def test_every_picture_has_a_text_and_a_size(hostile: Planned) -> None:
    for image in Page(_html(hostile.uri)).named("img"):
        assert image["alt"].strip()
        assert (image["width"], image["height"]) == ("16", "16")


def test_no_control_character_is_in_the_page(hostile: Planned) -> None:
    assert not [sign for sign in _html(hostile.uri) if ord(sign) < 32 and sign != "\n"]
    assert not [sign for sign in _html(hostile.uri) if 0x7F <= ord(sign) < 0xA0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", "a\N{REPLACEMENT CHARACTER}b"),
        ("\x1b[31mred", "\N{REPLACEMENT CHARACTER}[31mred"),
        ("a\x9bb\x7f", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
        ("zażółć 画 👩‍🚀 עברית", "zażółć 画 👩‍🚀 עברית"),
        ("", ""),
    ],
)
def test_control_characters_are_made_visible_and_nothing_else_changes(text: str, shown: str) -> None:
    assert visible(text) == shown


def _tiles(page: Page) -> dict[str, str]:
    labels = ["ok", "failed", "blank", "missing", "rows refused", "duplicates, made once", "prompts cut short"]
    return {label: page.after(label) for label in labels if label in page.texts}


def test_totals_are_those_of_the_summary(tmp_path: Path) -> None:
    rows = [*PROMPTS[:10], {"prompt": "", "id": "empty"}, PROMPTS[3], {"prompt": "word " * 60}]
    there = planned(tmp_path, str(tmp_path / "out"), rows, limits={"rejected_share": 1.0, "failed_share": 1.0})
    fill(there, {1: not_ok(1), 2: not_ok(2), 6: not_ok(6, "blank", "one colour")})
    open_store(there.uri).remove(names.part(1, 0))
    with pytest.raises(Incomplete):
        aggregate(there.uri)
    assert _tiles(Page(_html(there.uri))) == {
        "ok": "5",
        "failed": "2",
        "blank": "1",
        "missing": "3",
        "rows refused": "1",
        "duplicates, made once": "1",
        "prompts cut short": "1",
    }


def test_an_unfinished_run_names_what_is_missing(tmp_path: Path) -> None:
    there = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:4])
    with pytest.raises(Incomplete):
        aggregate(there.uri)
    page = Page(_html(there.uri))
    assert page.after("Missing").startswith("1 parts are not there")
    assert names.part(0, 0) in page.after("Missing")
    assert page.named("img") == []


def test_a_finished_run_shows_its_model_device_and_time_by_stage(tmp_path: Path) -> None:
    store = finished(tmp_path / "run")
    summary: Summary = SUMMARY.validate_json(store.read(names.SUMMARY))
    page = Page(_html(tmp_path / "run"))
    assert page.texts.count(summary.run_id) == 2  # as title and as heading
    assert any(text.endswith("float32, on cpu") for text in page.texts)
    assert page.after("text, denoise, decode") == f"{summary.seconds.denoise:,.1f} s"
    assert "20 of 20 images are ok." in page.texts
