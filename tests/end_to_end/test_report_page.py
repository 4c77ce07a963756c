"""Reports in a browser without a network: everything is drawn, nothing is asked for, and all of it can be looked into.

Needs chromium (on Debian a package of that name), which nothing else here does; without it the tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from math import radians, sin
from pathlib import Path
from typing import Any

import page_cases
import pytest
from browser import Browser, browser_program
from sim_cases import make_trace, ring_job, scenario

from gradwire.analysis.report.charts import Axis, Heat
from gradwire.analysis.report.html_page import PageSection, chart, html_page
from gradwire.sim.simulate import simulate
from gradwire.studies.report.report_inputs import report

PROGRAM = browser_program()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no chromium (Debian: apt install chromium)"),
]
VIEW = "document.querySelector('.timeline').dataset.view.split('-').map(Number)"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a section of each kind."""
    place = tmp_path_factory.mktemp("page")
    sources = [
        page_cases.runs(), page_cases.sweep(place / "sweep"), page_cases.claims(place / "claims"),
        page_cases.trainings(place / "trainings"), page_cases.fidelity(place / "fidelity"),
    ]  # fmt: skip
    return report(*sources, out=place / "report.html", perfetto=False).path


@pytest.fixture
def browser(written: Path) -> Iterator[Browser]:
    """The page, opened; nothing it does afterwards may be complained about, or reach for anything."""
    assert PROGRAM is not None
    with Browser(PROGRAM) as found:
        found.open(written)
        yield found
        assert found.complaints == []
        assert found.requests and set(found.requests) == {written.resolve().as_uri()}


def timeline_box(browser: Browser) -> dict[str, float]:
    browser.run("document.querySelector('.timeline').scrollIntoView({block: 'start'})")
    browser.settled()
    box: dict[str, float] = browser.run(
        "(({x, y, width, height}) => ({x, y, width, height}))(document.querySelector('.timeline canvas[tabindex]').getBoundingClientRect())"
    )
    return box


def test_every_plot_is_drawn_within_its_frame(browser: Browser) -> None:
    """All marks lie inside their picture, and the canvas of the timeline is not empty."""
    drawn = browser.run(
        "[...document.querySelectorAll('figure')].map((f) => [f.getAttribute('aria-label'), Number(f.dataset.drawn)])"
    )
    assert len(drawn) > 15 and all(count > 0 for _, count in drawn), drawn
    outside = browser.run("""[...document.querySelectorAll('.chart > svg')].flatMap((svg) => {
        const box = svg.viewBox.baseVal;
        return [...svg.querySelectorAll('path, rect, circle:not([visibility=hidden])')].filter((each) => {
            const b = each.getBBox();
            return !(b.x >= -1 && b.y >= -1 && b.x + b.width <= box.width + 1 && b.y + b.height <= box.height + 1);
        }).map((each) => svg.getAttribute('aria-label') + each.outerHTML.slice(0, 90));
    })""")
    assert outside == []
    drawn = browser.run("[...document.querySelectorAll('.chart > svg')].map((svg) => svg.outerHTML).join('')")
    assert "NaN" not in drawn and "undefined" not in drawn
    colours = browser.run("""(() => { const c = document.querySelector('.timeline canvas');
        const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return new Set(Array.from({length: p.length / 4}, (_, i) => p.slice(4 * i, 4 * i + 4).join())).size; })()""")
    assert colours > 5


def test_timeline_zooms_and_pans(browser: Browser) -> None:
    """Keys, wheel, buttons and dragging move the view; the time under the pointer stays there."""
    box = timeline_box(browser)
    whole = browser.run(VIEW)
    browser.run("document.querySelector('.timeline canvas[tabindex]').focus()")
    browser.key("+")
    first = browser.run(VIEW)
    assert first[1] - first[0] == pytest.approx((whole[1] - whole[0]) / 2, rel=1e-3)
    browser.key("ArrowRight")
    moved = browser.run(VIEW)
    assert moved[0] - first[0] == pytest.approx(0.2 * (first[1] - first[0]), rel=1e-3)
    gutter = browser.run("Math.round(Math.min(170, document.querySelector('.timeline').clientWidth * 0.22))")
    x, y = box["x"] + gutter + (box["width"] - gutter) / 3, box["y"] + 60
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100)
    browser.settled()
    closer = browser.run(VIEW)
    at = [view[0] + (view[1] - view[0]) / 3 for view in (moved, closer)]
    assert closer[1] - closer[0] == pytest.approx(0.8 * (moved[1] - moved[0]), rel=1e-3)
    assert at[0] == pytest.approx(at[1], abs=0.01 * (moved[1] - moved[0]))
    for kind, place in (("mousePressed", x), ("mouseMoved", x - 80), ("mouseReleased", x - 80)):
        browser.mouse(kind, place, y, button="left", clickCount=1, buttons=1)
    dragged = browser.run(VIEW)
    assert dragged[0] - closer[0] == pytest.approx(80 * (closer[1] - closer[0]) / (box["width"] - gutter), rel=0.02)
    browser.key("0")
    assert browser.run(VIEW) == whole


def test_timeline_is_navigable_by_keyboard(browser: Browser) -> None:
    """Down selects the first host, N steps through its events, and Enter enlarges it. Buttons select other runs."""
    timeline_box(browser)
    browser.run("document.querySelector('.timeline canvas[tabindex]').focus()")
    browser.key("ArrowDown")
    assert "h0 resnet50 worker 0" in browser.run("document.getElementById('tip').textContent")
    browser.key("n")
    said = browser.run("document.getElementById('tip').textContent")
    assert said.startswith("h0: ") and " from " in said
    small = browser.run("document.querySelector('.timeline canvas').clientHeight")
    browser.key("Enter")
    assert browser.run("document.querySelector('.timeline canvas').clientHeight") > small
    names = browser.run(
        "[...document.querySelectorAll('.timeline .run')].map((b) => { b.click(); return document.querySelector('.timeline').dataset.run; })"
    )
    assert len(set(names)) == len(names) == 3


def test_plots_show_values_for_keyboard_and_pointer(browser: Browser) -> None:
    browser.run("document.querySelector('.chart > svg').focus()")
    browser.key("ArrowRight")
    said = browser.run("document.getElementById('tip').textContent")
    assert "computing: " in said and " ms" in said
    browser.key("ArrowRight")
    assert browser.run("document.getElementById('tip').textContent") != said
    browser.key("Escape")
    assert browser.run("document.getElementById('tip').hidden") is True
    browser.run("document.querySelector('.chart > svg').scrollIntoView({block: 'center'})")
    browser.settled()
    box = browser.run("(({x, y}) => ({x, y}))(document.querySelector('.chart svg[role] rect').getBoundingClientRect())")
    browser.mouse("mouseMoved", box["x"] + 10, box["y"] + 10)
    browser.settled()
    assert browser.run("document.getElementById('tip').hidden") is False


def test_legend_hides_series_and_dragging_zooms_plots(browser: Browser) -> None:
    lines = "[...document.querySelectorAll('.chart')].find((f) => f.querySelector('.keys .key') && JSON.parse(f.querySelector('script').textContent).kind === 'lines')"
    paths = f"{lines}.querySelectorAll(':scope > svg > path').length"
    before, spots = browser.run(paths), browser.run(f"Number({lines}.dataset.drawn)")
    browser.run(f"{lines}.querySelector('.key').click()")
    assert browser.run(paths) < before
    assert browser.run(f"{lines}.querySelector('.key').getAttribute('aria-pressed')") == "false"
    browser.run(f"{lines}.querySelector('.key').click()")
    assert browser.run(paths) == before
    browser.run(f"{lines}.scrollIntoView({{block: 'center'}})")
    browser.settled()
    box: dict[str, float] = browser.run(
        f"(({{x, y, width, height}}) => ({{x, y, width, height}}))({lines}.querySelector(':scope > svg').getBoundingClientRect())"
    )
    middle = box["y"] + box["height"] / 2
    for kind, share in (("mousePressed", 0.4), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
        browser.mouse(kind, box["x"] + share * box["width"], middle, button="left", clickCount=1, buttons=1)
    browser.settled()
    assert 0 < browser.run(f"Number({lines}.dataset.drawn)") < spots
    browser.run(f"{lines}.querySelector(':scope > svg').focus()")
    browser.key("0")
    assert browser.run(f"Number({lines}.dataset.drawn)") == spots


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2, from colours such as "rgb(1, 2, 3)"."""

    def light(colour: str) -> float:
        parts = [int(each) / 255 for each in colour.strip("rgb()").split(",")]
        red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_light_and_dark_themes_have_sufficient_contrast(browser: Browser) -> None:
    """The theme follows the system and the button. Text has a contrast of 4.5, lines of plots one of 3."""
    seen = set()
    for dark in (False, True):
        browser.dark(dark)
        browser.settled()
        ground = browser.run("getComputedStyle(document.body).backgroundColor")
        seen.add(ground)
        for element in ("p", "figcaption", "a", ".kind", "button", "td"):
            ink = browser.run(f"getComputedStyle(document.querySelector('{element}')).color")
            assert contrast(ink, ground) >= 4.5, (element, dark)
        for n in range(6):
            browser.run(f"document.querySelector('footer').style.color = 'var(--c{n})'")
            assert contrast(browser.run("getComputedStyle(document.querySelector('footer')).color"), ground) >= 3, (
                n,
                dark,
            )
    browser.run("document.getElementById('theme').click()")
    assert len(seen) == 2 and browser.run("getComputedStyle(document.body).backgroundColor") != ground


@pytest.mark.parametrize("wide", [320, 400, 768, 1280, 1600])
def test_page_fits_every_window_width(wide: int, browser: Browser) -> None:
    """Wide tables scroll in their frames; the page itself does not. The drawn network has readable letters."""
    browser.window(wide, 800)
    browser.settled()
    assert browser.run("document.documentElement.scrollWidth") <= wide
    assert browser.run("[...document.querySelectorAll('figure')].every((f) => Number(f.dataset.drawn) > 0)")
    box, scale = (
        browser.run("""(() => { const svg = document.querySelector('.topology svg'), b = svg.getBoundingClientRect();
        return [[b.left, b.right], b.width / svg.viewBox.baseVal.width]; })()""")
    )
    assert box[0] >= 0 and box[1] <= wide and 12 * scale >= 9


def test_64_lanes_are_folded_to_two_until_a_click(tmp_path: Path) -> None:
    trace = make_trace([[20_000]]).save(tmp_path / "trace")
    job = {**ring_job(64), "trace": str(trace), "iterations": 3}
    written = report(simulate(scenario(job, hosts=64)), out=tmp_path / "page.html", perfetto=False).path
    assert PROGRAM is not None
    with Browser(PROGRAM) as found:
        found.open(written)
        high = "document.querySelector('.timeline canvas').clientHeight"
        button = "[...document.querySelectorAll('.timeline .run')].find((b) => b.textContent === 'all 64 hosts')"
        folded = found.run(high)
        assert found.run(f"{button}.getAttribute('aria-pressed')") == "false"
        found.run(f"{button}.click()")
        found.settled()
        assert found.run(high) > 10 * folded and found.run(f"{button}.getAttribute('aria-pressed')") == "true"
        found.run(f"{button}.click()")
        found.settled()
        assert found.run(high) == folded and found.complaints == []


@pytest.mark.parametrize("columns", [60, 200])
def test_maps_of_many_columns_fit_their_frame(columns: int, tmp_path: Path) -> None:
    """Of the labels some are shown, which do not touch: they are turned by 35 degrees, so 12 / sin(35) pixels apart."""
    names = [(float(n), f"{1.5 * n + 0.1:g}") for n in range(columns)]
    sides = [(float(n), f"{n} KiB and a long name") for n in range(3)]
    values = [[float(n * row % 17) for n in range(columns)] for row in range(3)]
    heat = Heat("map", "", Axis("load", ticks=names), Axis("buffer", ticks=sides), "time of all (ms)", values)
    section = PageSection("map", "", parts=[chart(heat)])
    (tmp_path / "page.html").write_text(html_page("map", [section]))
    assert PROGRAM is not None
    with Browser(PROGRAM) as found:
        found.open(tmp_path / "page.html", 400)
        assert found.complaints == []
        inside, apart = found.run("""(() => {
            const svg = document.querySelector('.chart > svg'), box = svg.getBoundingClientRect();
            const all = [...svg.querySelectorAll('rect, text')].map((each) => each.getBoundingClientRect());
            const at = [...svg.querySelectorAll('text[transform*="-35"]')].map((each) => Number(each.getAttribute('x')));
            return [all.every((b) => b.width > 0 && b.left >= box.left - 1 && b.right <= box.right + 1),
                Math.min(...at.slice(1).map((x, n) => x - at[n]))];
        })()""")
        assert inside and apart >= 12 / sin(radians(35))


def test_axis_labels_do_not_overlap_and_long_tables_break_in_print(tmp_path: Path) -> None:
    """Axis labels are rotated if the widest neighbours do not fit. A table longer than a sheet of paper may break
    across pages, or it would leave the first page empty."""
    names = [f"ResNet-50, {2**n} nodes" for n in range(4)] + [
        f"VGG-16, {2**n} nodes, one picture each" for n in range(2)
    ]
    place = page_cases.claims(tmp_path / "claims", names, 20)
    written = report(place, page_cases.claims(tmp_path / "few"), out=tmp_path / "page.html").path
    assert PROGRAM is not None
    with Browser(PROGRAM) as found:
        found.open(written)
        for wide in (1200, 900, 2400):
            found.window(wide, 900)
            found.settled()
            overlaps = found.run("""[...document.querySelectorAll('.chart > svg')].flatMap((svg) => {
                const names = [...svg.querySelectorAll('text[text-anchor=middle]:not([transform])')].map((t) => t.getBoundingClientRect());
                return names.filter((a) => names.some((b) => b !== a && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
            }).length""")
            assert overlaps == 0, wide
        found.ask("Emulation.setEmulatedMedia", media="print", features=[])
        tables = found.run("""[...document.querySelectorAll('.table')].filter((t) => t.offsetHeight)
            .map((t) => [t.querySelectorAll('tbody tr').length, getComputedStyle(t).breakInside])""")
        assert {rows > 9 for rows, _ in tables} == {True, False}
        assert all(how == ("auto" if rows > 9 else "avoid") for rows, how in tables), tables


def test_dark_page_prints_on_white_without_buttons(browser: Browser, tmp_path: Path) -> None:
    """After printing the page is dark again."""
    browser.dark(True)
    browser.settled()
    before = browser.run("document.documentElement.dataset.theme")
    browser.ask(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    browser.settled()
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run(
        "[...document.querySelectorAll('.bar, .tools, .code button')].every((b) => b.offsetHeight === 0)"
    )
    pixel: Any = browser.run(
        "(() => { const c = document.querySelector('.timeline canvas'); return [...c.getContext('2d').getImageData(3, 3, 1, 1).data]; })()"
    )
    assert pixel[3] == 0 or min(pixel[:3]) > 200
    browser.dark(True)
    browser.settled()
    assert browser.run("document.documentElement.dataset.theme") == before == "dark"
    browser.paper(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"


def test_timeline_is_printed_as_vector_graphics(browser: Browser) -> None:
    """The printed picture has everything that the canvas has, and is removed afterwards. It names its run, as buttons
    are not printed. Collapsed sections are left out."""
    timeline = "document.querySelector('.timeline')"
    there = browser.run(f"""JSON.parse({timeline}.querySelector('script').textContent).runs[0].hosts
        .map((host) => host.spans.begin.length + host.messages.begin.length).reduce((a, b) => a + b)""")
    browser.ask("Emulation.setEmulatedMedia", media="print", features=[])
    browser.settled()
    assert browser.run(f"Number({timeline}.dataset.drawn)") >= there > 20
    boxes = browser.run(
        f"[...{timeline}.querySelectorAll('svg path')].map((p) => p.getAttribute('d').split('M').length - 1).reduce((a, b) => a + b)"
    )
    assert boxes >= there
    colours = browser.run(
        f"new Set([...{timeline}.querySelectorAll('svg path')].map((p) => p.getAttribute('fill'))).size"
    )
    assert colours > 4 and browser.run(f"[...{timeline}.querySelectorAll('canvas')].every((c) => c.offsetHeight === 0)")
    outside = browser.run(f"""[...{timeline}.querySelectorAll('svg path, svg text')].filter((each) => {{
        const b = each.getBBox(), box = {timeline}.querySelector('svg').viewBox.baseVal;
        return b.x < -1 || b.y < -1 || b.x + b.width > box.width + 2 || b.y + b.height > box.height + 2; }}).length""")
    assert outside == 0
    name = browser.run(f"{timeline}.dataset.run")
    assert browser.run(f"{timeline}.querySelector('.remark').textContent").startswith(f"{name}: ")
    assert browser.run("[...document.querySelectorAll('details:not([open])')].every((each) => each.offsetHeight === 0)")
    browser.ask("Emulation.setEmulatedMedia", media="screen", features=[])
    browser.settled()
    assert browser.run(
        f"{timeline}.querySelector('svg') === null && {timeline}.querySelector('canvas').offsetHeight > 0"
    )
