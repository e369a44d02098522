"""The report and the page of a diff in a real browser, on a phone and on a screen."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.maintain.diff import diff
from imagekiln.steps.plan.step import make_plan
from tests.browser import Tab, find_browser, open_tab
from tests.runs import fill, settings

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium: apt-get install chromium-headless-shell"
)
NO_OVERFLOW = "document.documentElement.scrollWidth <= innerWidth"
# Whether each part of a name between its dots is in one line.
UNBROKEN = """[...document.querySelectorAll('tbody th')].every(cell =>
  [...cell.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).every(text => {
    const range = document.createRange(); range.selectNode(text);
    return range.getClientRects().length === 1; }))"""


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with open_tab(tmp_path / "profile") as tab:
        yield tab


def _sweep(tmp_path: Path, name: str, **defaults: object) -> str:
    """A finished sweep of three lines and two columns."""
    sweep = {"steps": [1, 2], "guidance": [1.5, 2.5, 3.5]}
    template = {"template": "a {red|blue} kettle", "combinations": "all", "sweep": sweep}
    plain = settings(tmp_path, str(tmp_path / "out"), name=name, defaults={"seed": 7, **defaults})
    run = make_plan(validate_job(plain | {"prompts": template}))
    fill(run)
    aggregate(run.uri)
    return run.uri


def test_every_section_of_a_report_can_be_reached_on_a_phone(tab: Tab, tmp_path: Path) -> None:
    tab.resize(390, 844, phone=True)
    tab.open(f"file://{_sweep(tmp_path, 'narrow')}/report/index.html")
    assert tab.evaluate(NO_OVERFLOW)
    ends = "[...document.querySelectorAll('nav a')].map(a => a.getBoundingClientRect().right)"
    assert tab.evaluate(f"Math.max(...{ends}) <= innerWidth")


def test_a_prompt_of_a_small_sweep_leaves_room_for_the_next(tab: Tab, tmp_path: Path) -> None:
    tab.resize(1280, 800)
    tab.open(f"file://{_sweep(tmp_path, 'small')}/report/index.html")
    height = "document.querySelector('.sweep tbody').getBoundingClientRect().height"
    assert tab.evaluate(f"{height} < 0.75 * innerHeight")


def test_names_of_settings_break_only_between_words_on_a_phone(tab: Tab, tmp_path: Path) -> None:
    other = {"negative_prompt": "blurry", "images_per_prompt": 2, "strength": 0.5}
    pair = _sweep(tmp_path, "one"), _sweep(tmp_path, "other", **other)
    tab.resize(390, 844, phone=True)
    tab.open(f"file://{diff(*pair, str(tmp_path / 'page')).page}")
    assert tab.evaluate("document.querySelectorAll('tbody th').length > 2")
    assert tab.evaluate(NO_OVERFLOW)
    assert tab.evaluate(UNBROKEN)
