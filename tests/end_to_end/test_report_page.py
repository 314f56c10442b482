"""The report in a browser: nothing asked of the network, nothing said on the console, all reachable by keyboard."""

import json
from pathlib import Path

import pytest

from ccvr.cli.main import dispatch
from ccvr.experiment.pipeline import run
from tests.end_to_end.chromium import Page, browse, find_chromium
from tests.end_to_end.tiny import TINY
from tests.report.hostile import HOSTILE, write_hostile_runs

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium, or set $CHROMIUM")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    run(TINY, path)
    dispatch(["analyze", str(path), "--quiet", "--points", "200"])
    dispatch(["report", str(path), "--quiet"])
    return path


@pytest.fixture(scope="module")
def page(finished, tmp_path_factory):
    with browse(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        page.open((finished / "report.html").as_uri())
        yield page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    runs = write_hostile_runs(folder)
    dispatch(["report", *map(str, runs), "-o", str(folder / "page.html"), "--quiet"])
    with browse(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        page.open((folder / "page.html").as_uri())
        yield page


def test_nothing_is_asked_of_the_network(page: Page) -> None:
    asked = [event["params"]["request"]["url"] for event in page.of("Network.requestWillBeSent")]
    assert [url[:60] for url in asked if not url.startswith(("data:", "file:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == 1


def test_nothing_is_said_on_the_console(page: Page) -> None:
    assert page.of("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []


def test_hostile_names_do_nothing(hostile: Page) -> None:
    said = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening")
    assert hostile.of(*said) == []
    asked = [event["params"]["request"]["url"] for event in hostile.of("Network.requestWillBeSent")]
    assert len([url for url in asked if not url.startswith("data:")]) == 1
    assert hostile.value("document.scripts.length") == 1
    assert hostile.value("document.images.length") == 0
    assert hostile.value("[...document.querySelectorAll('b, iframe, object, form')].length") == 0
    assert hostile.value("document.querySelectorAll('#repeat ~ h3').length") == 2, "the page is there to its end"
    assert HOSTILE[0] in hostile.value("document.querySelector('.card').textContent")


@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_names_do_not_widen_the_page(hostile: Page, width: int) -> None:
    hostile.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert hostile.value("document.documentElement.scrollWidth") <= width


def test_every_drawing_has_a_size_and_words(page: Page) -> None:
    boxes = page.value(
        "[...document.querySelectorAll('svg, svg image')].map(e => [e.getBoundingClientRect().width, "
        "e.getBoundingClientRect().height, e.tagName === 'image' || e.getAttribute('aria-label').length > 20])"
    )
    assert len(boxes) >= 20
    assert all(width > 2 and height > 2 and words for width, height, words in boxes)


def test_the_headline_is_what_the_results_say(page: Page, finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    accuracy = results["accuracy"]
    words = page.value("document.querySelector('.big').textContent")
    assert words == f"{accuracy['uncalibrated']:.2f} % → {accuracy[results['deployed']]:.2f} %"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_as_wide_as_the_screen(page: Page, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert page.value("document.documentElement.scrollWidth") <= width


def test_on_a_phone_the_numbers_of_every_head_are_seen(page: Page) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    edges = page.value("[...document.querySelectorAll('#heads td')].map(e => e.getBoundingClientRect().right)")
    assert len(edges) > 9
    assert max(edges) <= 390


def test_a_table_of_few_rows_is_seen_whole_and_a_wide_one_shows_that_it_goes_on(hostile: Page) -> None:
    tables = "[...document.querySelectorAll('.scroll')].filter(e => e.checkVisibility())"
    for width in (1280, 390):
        hostile.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        assert hostile.value(f"{tables}.map(e => e.scrollHeight > e.clientHeight + 1)") == [False, False, False]
    assert hostile.value(f"{tables}.map(e => e.scrollWidth > e.clientWidth + 1)") == [False, True, True]
    assert hostile.value(f"getComputedStyle({tables}[2]).backgroundAttachment") == "local, local, scroll, scroll"


def test_nothing_is_folded_in_print(page: Page) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    page.value("document.querySelectorAll('details').forEach(each => each.open = false)")
    before = page.value(folded)
    assert before >= 2
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value(folded) == 0
    page.value("dispatchEvent(new Event('afterprint'))")
    assert page.value(folded) == before


def test_the_first_key_skips_to_the_content(page: Page) -> None:
    page.value("document.activeElement.blur(), window.getSelection().removeAllRanges()")
    page.press("Tab", 9)
    assert page.value("document.activeElement.className") == "skip"
    page.press("Enter", 13, "\r")
    assert page.value("document.activeElement.id") == "main"


def test_everything_that_acts_is_reached_by_tab(page: Page) -> None:
    acting = "[...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')]"
    page.value(f"window.left = new Set({acting}.filter(each => each.checkVisibility())), window.bare = []")
    total = page.value("left.size")
    assert total > 25
    for _ in range(total + 2):  # once around, wherever it begins
        page.press("Tab", 9)
        page.value(
            "left.delete(document.activeElement) && getComputedStyle(document.activeElement).outlineStyle === 'none' "
            "&& bare.push(document.activeElement)"
        )
    assert page.value("[...left].map(each => each.outerHTML.slice(0, 80))") == []
    assert page.value("bare.map(each => each.outerHTML.slice(0, 80))") == [], "what has the focus shows it"


def test_details_open_by_keyboard(page: Page) -> None:
    page.value("document.querySelector('details').open = false, document.querySelector('summary').focus()")
    page.press("Enter", 13, "\r")
    assert page.value("document.querySelector('details').open") is True


def test_tables_are_sorted_by_keyboard(page: Page) -> None:
    column = "[...document.querySelectorAll('#heads tbody tr')].map(r => Number(r.cells[1].dataset.value))"
    sort = "document.querySelectorAll('#heads th')[1].getAttribute('aria-sort')"
    page.value("document.querySelectorAll('#heads th button')[1].focus()")
    values = page.value(column)
    page.press("Enter", 13, "\r")
    assert (page.value(column), page.value(sort)) == (sorted(values), "ascending")
    page.press("Enter", 13, "\r")
    assert (page.value(column), page.value(sort)) == (sorted(values, reverse=True), "descending")


def test_dark_and_light_differ(page: Page) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        seen.add(page.value("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) == 2
