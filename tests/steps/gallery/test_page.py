"""The gallery's page in a real browser: what people do with it, and what it does with texts."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Tab, find_browser, open_tab
from tests.galleries import (
    HOSTILE,
    HOSTILE_COLUMN,
    IMAGES,
    Client,
    serving,
    write_best_of,
    write_runs,
)

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium: apt-get install chromium-headless-shell"
)
TILES = "document.querySelectorAll('#sheet li')"
OPEN_IMAGE = "$('detail').open && $('cells').children.length && $('detail').dataset.image"
NO_OVERFLOW = "document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_runs(folder, str(folder / "out"))
    return folder / "out"


@pytest.fixture(scope="module")
def client(output: Path) -> Iterator[Client]:
    with serving(str(output)) as client:
        yield client


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with open_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, client: Client) -> Tab:
    """The first page, on a phone, with all its thumbnails."""
    browser.resize(360, 740, phone=True)
    browser.open("about:blank")
    browser.wait_for("location.href === 'about:blank'")
    browser.events.clear()
    browser.open(client.server.url)
    browser.wait_for(f"{TILES}.length === {2 * IMAGES - 2} && $('count').textContent")
    return browser


def test_images_come_first_and_what_has_none_is_a_click_away(tab: Tab) -> None:
    assert tab.evaluate("$('count').textContent") == f"{2 * IMAGES - 2} images; 2 failed hidden"
    assert tab.evaluate("$('status').offsetParent") is None, "the filters are folded"
    assert tab.evaluate("document.querySelector('#sheet img').getBoundingClientRect().top < 370")
    tab.evaluate("$('fold').click()")
    assert tab.evaluate("$('status').offsetParent !== null && " + NO_OVERFLOW)
    tab.evaluate("$('show-hidden').click()")
    shown = f"{TILES}.length === {2 * IMAGES} && $('show-hidden').hidden && $('count').textContent"
    assert tab.wait_for(shown) == f"{2 * IMAGES} images"
    tab.reload()
    assert tab.wait_for(shown) == f"{2 * IMAGES} images"


def test_an_image_shows_its_values_and_the_candidates_it_has_beaten(
    browser: Tab, tmp_path: Path
) -> None:
    with serving(write_best_of(tmp_path)) as client:
        browser.open(client.server.url)
        count = browser.wait_for(f"{TILES}.length === 1 && $('count').textContent")
        assert count == "1 image; 4 failed, 1 forgotten, 6 outscored hidden"
        browser.evaluate("openTile(0)")
        browser.wait_for("$('candidates').children.length === 4 && !$('rivals').hidden")
        assert browser.evaluate("$('candidates').children[1].textContent.endsWith('outscored')")
        tops = ["$('cells')", "$('command')", "$('alike')"]
        order = " < ".join(f"{top}.getBoundingClientRect().top" for top in tops[:2])
        assert browser.evaluate(order)
        browser.evaluate("$('candidates').children[3].click()")
        browser.wait_for("$('full').hidden && $('candidates').children.length === 4")
        browser.evaluate("$('close').click(); $('show-hidden').click()")
        browser.wait_for(f"{TILES}.length === 12")
        red = "[...document.querySelectorAll('.frame .bad')].map((one) => one.textContent).join()"
        assert browser.evaluate(red) == "failed,failed,failed,failed"


def test_people_search_look_and_step_with_the_keyboard_on_a_phone(tab: Tab, client: Client) -> None:
    assert tab.wait_for(f"{TILES}[0].querySelector('img').naturalWidth > 0")
    assert tab.evaluate(NO_OVERFLOW)

    tab.evaluate("$('words').value = 'kettle'; $('words').dispatchEvent(new Event('input'))")
    assert tab.wait_for(f"{TILES}.length === 4 && $('count').textContent") == "4 images"
    tab.evaluate("document.querySelector('#sheet button').click()")
    first, second = (
        tile["image_id"] for tile in client.tiles(("prompt", "contains", "kettle"))[:2]
    )
    assert tab.wait_for(OPEN_IMAGE) == first
    assert tab.wait_for("$('full').naturalWidth > 0")
    assert tab.evaluate("$('detail').scrollWidth <= innerWidth")
    assert f"imagekiln reproduce {client.server.gallery.state().uri}" in str(
        tab.evaluate("$('command').textContent")
    )
    tab.press("ArrowRight")
    assert tab.wait_for(f"({OPEN_IMAGE}) === '{second}'")
    tab.press("ArrowLeft")
    assert tab.wait_for(f"({OPEN_IMAGE}) === '{first}'")
    neighbors = "document.querySelectorAll('#neighbors li').length"
    assert tab.wait_for(neighbors) == 2 * IMAGES - 3
    tab.evaluate("$('close').click()")
    assert tab.complaints() == []


def test_filters_and_order_come_back_with_the_address(tab: Tab, client: Client) -> None:
    tab.evaluate(
        "$('sort').value = 'score'; $('order').value = 'asc'; $('status').value = 'ok';"
        "$('column').value = 'tag'; showOperators(); $('operator').value = 'is';"
        "$('value').value = 'tag 1'; $('add').click()"
    )
    where = (("tag", "is", "tag 1"), ("status", "is", "ok"))
    tiles = client.tiles(*where, sort="score", descending=False)
    shown = f"tiles.length === {len(tiles)} && tiles.map((tile) => tile.image_id).join()"
    expected = ",".join(str(tile["image_id"]) for tile in tiles)
    assert tab.wait_for(shown) == expected
    assert tab.evaluate(NO_OVERFLOW)
    tab.reload()
    tab.wait_for("state && $('chips').children.length")
    assert tab.wait_for(shown) == expected
    assert tab.complaints() == []


def test_texts_of_runs_stay_texts(tab: Tab) -> None:
    assert HOSTILE in str(
        tab.evaluate(
            "[...document.querySelectorAll('.caption')].map((one) => one.textContent).join()"
        )
    )
    tab.evaluate(
        "[...document.querySelectorAll('#sheet button')]"
        ".find((one) => one.textContent.includes('DROP')).click()"
    )
    tab.wait_for(OPEN_IMAGE)
    cells = str(tab.evaluate("$('cells').textContent"))
    assert HOSTILE_COLUMN + HOSTILE in cells
    assert tab.evaluate("window.hacked === undefined")
    assert tab.evaluate("document.querySelectorAll('[onerror], #sheet b, #cells b').length") == 0
    assert tab.complaints() == []


def test_the_policy_lets_nothing_else_run_or_be_asked(tab: Tab) -> None:
    tab.evaluate(
        "const script = document.createElement('script'); script.textContent = 'window.hacked = 2';"
        "document.body.append(script); const div = document.createElement('div');"
        "div.innerHTML = '<img src=x onerror=\"window.hacked = 3\">'; document.body.append(div); 0"
    )
    asked = "fetch('http://127.0.0.1:1/').then(() => 'sent', (error) => error.name)"
    assert tab.evaluate(asked) == "TypeError"
    assert tab.evaluate("window.hacked === undefined")
    complaints = " ".join(tab.complaints())
    assert complaints.count("Content Security Policy") >= 3


def test_trends_have_a_bar_for_each_run_of_a_job_and_a_table_for_each_job(
    tab: Tab, output: Path, tmp_path: Path
) -> None:
    tab.evaluate("$('show-trends').click(); $('mean').value = 'score'; showTrends()")
    last = "[...document.querySelectorAll('#trend-tables tr > :last-child')]"
    shown = f"{last}.length === 3 && {last}.map((one) => one.textContent).join('; ')"
    assert tab.wait_for(shown) == "mean of score, of ok images; 2.1111; 1.1111"
    widths = f"{last}.slice(1).map((one) => parseFloat(one.querySelector('i').style.width)).join()"
    assert tab.evaluate(widths) == "100,52.6316"
    assert tab.evaluate("document.querySelectorAll('#trend-tables table').length") == 1
    assert tab.evaluate(NO_OVERFLOW)
    assert tab.complaints() == []

    shutil.copytree(output, tmp_path / "out")
    write_best_of(tmp_path / "best", str(tmp_path / "out"))
    titles = "[...document.querySelectorAll('#trend-tables h2')].map((one) => one.textContent)"
    with serving(str(tmp_path / "out")) as client:
        tab.open(client.server.url)
        tab.wait_for(f"{TILES}.length === {2 * IMAGES - 1}")
        tab.evaluate("$('show-trends').click()")
        assert set(str(tab.wait_for(f"{titles}.length && {titles}.join()")).split(",")) == {
            "best",
            "tiny",
        }
