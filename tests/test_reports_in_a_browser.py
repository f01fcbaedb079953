"""The HTML reports in a real browser: they sort, run no foreign script, and fit a phone and a desk."""

import html
import json
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner
from test_bisect import linear
from test_comparison import compared
from test_parity_report import REPORTS, SCRIPT

from jaxpar._cli.main import cli

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Opens a page in a window of some width; what a script on it leaves in the title, and complaints."""
    if BROWSER is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")

    def open_it(path, width=1280) -> tuple[str, str]:
        profile = tmp_path_factory.mktemp("profile")
        arguments = [
            "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
            f"--user-data-dir={profile}", f"--window-size={width},900", f"file://{path}",
        ]  # fmt: skip
        run = subprocess.run([BROWSER, *arguments], capture_output=True, timeout=120, check=True)
        console = [line for line in run.stderr.decode().splitlines() if "CONSOLE" in line]
        return run.stdout.decode(), "\n".join(console)

    return open_it


PROBE = """
document.querySelectorAll("th button")[2].click();
var first = document.querySelector("tbody th").textContent, head = document.querySelectorAll("thead th");
document.querySelectorAll("th button")[5].click();
var numbers = Array.from(document.querySelectorAll("tbody tr")).map(r => r.cells[5].dataset.v);
document.querySelectorAll("th button")[5].click();
var last = Array.from(document.querySelectorAll("tbody tr")).map(r => r.cells[5].dataset.v);
var root = document.documentElement, sorted = Array.from(head).map(h => h.getAttribute("aria-sort"));
document.title = JSON.stringify({
  first: first, numbers: numbers, last: last, sorted: sorted,
  wide: root.scrollWidth, window: root.clientWidth,
  cut: Array.from(document.querySelectorAll("main, main *")).filter(function (e) {
    var style = getComputedStyle(e);
    return style.display !== "inline" && !e.closest("svg") && style.textOverflow !== "ellipsis"
      && e.scrollWidth > e.clientWidth + 1;
  }).map(e => e.tagName + "." + e.className),
  height: document.querySelector("svg[role=img]").clientHeight
});
"""


def probed(path, planted=""):
    """The page with a script that presses headings, which its policy would forbid."""
    text = path.read_text().replace("<main>", f"<main>{planted}")
    text = re.sub(r"<meta http-equiv=.*\n", "", text).replace("</body>", f"<script>{PROBE}</script></body>")
    other = path.with_name("probed.html")
    other.write_text(text)
    return other


def probe_result(dom):
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.S)[1]))


@pytest.mark.slow
@pytest.mark.parametrize("width", [500, 1280])
def test_headings_sort_and_the_page_fits(width, tmp_path, browse):
    c = REPORTS["different"]()
    c.save_html(tmp_path / "report.html")
    dom, console = browse(probed(tmp_path / "report.html"), width)
    assert console == ""
    seen = probe_result(dom)
    assert seen["first"].startswith("fc1.bias")
    numbers = [float(number) for number in seen["numbers"]]
    assert numbers == sorted(numbers, reverse=True)
    assert [float(number) for number in seen["last"]] == sorted(numbers)
    assert [order for order in seen["sorted"] if order] == ["ascending"]
    assert seen["wide"] <= seen["window"], "the page is wider than its window"
    assert seen["height"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("report", ["different", "numeric", "hostile"])
def test_nothing_is_cut_off_at_1200_pixels(report, tmp_path, browse):
    """Neither the table nor anything else is wider than what it stands in: nothing must be scrolled to."""
    REPORTS[report]().save_html(tmp_path / "report.html")
    dom, _ = browse(probed(tmp_path / "report.html"), 1200)
    assert probe_result(dom)["cut"] == []


@pytest.mark.slow
def test_what_is_planted_to_be_cut_off_is_seen(tmp_path, browse):
    REPORTS["different"]().save_html(tmp_path / "report.html")
    planted = '<div class="scroll"><p style="width:1400px;max-width:none">wide</p></div>'
    dom, _ = browse(probed(tmp_path / "report.html", planted), 1200)
    assert probe_result(dom)["cut"] == ["DIV.scroll"]


@pytest.mark.slow
def test_a_name_is_no_script(tmp_path, browse):
    REPORTS["hostile"]().save_html(tmp_path / "report.html")
    dom, console = browse(tmp_path / "report.html")
    assert console == ""
    assert "<title>taken" not in dom
    assert dom.count("<script>") == 1
    assert "<img" not in dom


@pytest.mark.slow
def test_a_planted_script_is_refused(tmp_path, browse):
    path = tmp_path / "report.html"
    compared().save_html(path)
    path.write_text(path.read_text().replace("<main>", f"<main>{SCRIPT}"))
    dom, console = browse(path)
    assert "Content Security Policy" in console
    assert "<title>taken" not in dom


@pytest.mark.slow
def test_a_planted_width_is_seen(tmp_path, browse):
    REPORTS["different"]().save_html(tmp_path / "report.html")
    dom, _ = browse(probed(tmp_path / "report.html", '<div style="width:3000px">wide</div>'))
    seen = probe_result(dom)
    assert seen["wide"] > seen["window"]


PHONE = 390
CUT = '<figure class="wide"><svg style="width:34rem"></svg></figure>'


def on_a_phone(path):
    """The page in a frame of a phone's width: a browser's own window has at least 500 pixels."""
    outer = path.with_name("phone.html")
    text = html.escape(probed(path).read_text())
    take = "document.title = document.querySelector('iframe').contentDocument.title"
    style = f"width:{PHONE}px;height:800px;border:0"
    outer.write_text(f'<title></title><iframe style="{style}" onload="{take}" srcdoc="{text}"></iframe>')
    return outer


def different(path):
    REPORTS["different"]().save_html(path)


def parted(path):
    linear(path.with_name("a"))
    linear(path.with_name("b"), rate=0.3)
    CliRunner().invoke(
        cli, ["bisect", str(path.with_name("a")), str(path.with_name("b")), "--html", str(path)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("save", [different, parted])
@pytest.mark.parametrize(
    ("planted", "cut"), [("", []), (CUT, ["MAIN.", "FIGURE.wide"])], ids=["healthy", "planted"]
)
def test_a_phone_shows_whole_curves(save, planted, cut, tmp_path, browse):
    """A table may be scrolled sideways in its own frame; a curve or a sentence never is."""
    path = tmp_path / "report.html"
    save(path)
    path.write_text(path.read_text().replace("<main>", f"<main>{planted}"))
    dom, console = browse(on_a_phone(path))
    assert console == ""
    result = probe_result(dom)
    assert result["window"] <= PHONE
    assert [tag for tag in result["cut"] if not tag.startswith("DIV.scroll")] == cut
