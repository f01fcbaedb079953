"""The HTML report: strict markup, nothing from outside, nothing from a name; and a look in a browser."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from test_comparison import CURVE, DIVERGENCE, compared

from jaxpar import parity
from jaxpar.parity import Comparison, Curve, Kind, Level, Outcome, Policy, measuring
from jaxpar.parity._render import html

pytest.importorskip("jinja2")

SCRIPT = "<script>document.title='taken'</script>"
HOSTILE = f"</title></style></script>{SCRIPT}<img src=x onerror=alert(1)>\"'&amp;\x00"
LONG = "encoder.layers.10.attention." + "long." * 18 + "weight"


def page(c: Comparison, tmp_path, name="report.html") -> ElementTree.Element:
    """The report, parsed as XML: an element that is not closed or a bare `<` fails here."""
    path = tmp_path / name
    c.save_html(path)
    return ElementTree.parse(path).getroot()


def texts(element: ElementTree.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def numeric(count=300) -> Comparison:
    """Two steps with ratios; some tensors worse, some different, one noise, one a fault."""
    random = np.random.RandomState(0)
    rows = ()
    policy = Policy(Level.TRAJECTORY)
    for step in (1, 2):
        o = {f"{LONG}.{i}": random.standard_normal((3, 7)) for i in range(count)}
        r = {name: x.astype(np.float32) for name, x in o.items()}
        c = {name: (x * (1 + 1e-7 * (i % 9))).astype(np.float32) for i, (name, x) in enumerate(o.items())}
        c[f"{LONG}.3"] = c[f"{LONG}.3"].T
        noise = {f"{LONG}.4": "its gradient is noise"}
        rows += measuring.judge(measuring.measure(c, r, Kind.UPDATE, step, oracle=o), policy, noise)
    steps = tuple(range(1, 1001))
    high = tuple(1e-7 * 1.01**step for step in steps)
    curve = Curve(steps, tuple(0.5 * h for h in high), tuple(0.1 * h for h in high), high, None, False)
    return Comparison(policy.level, rows, 2, 8, None, curve, {"XLA_FLAGS": "--x " * 99}, policy=policy)


ONE, ZEROS = np.array(1), {"a": np.zeros(9), "b": np.ones(9)}
REPORTS = {
    "same": lambda: compared(),
    "different": lambda: compared(
        ["fc1.bias"], divergence=DIVERGENCE, curve=CURVE, notes=("3 kinks.",), environment={"jax": "0.10.2"}
    ),
    "numeric": numeric,
    "nothing": lambda: Comparison(Level.NUMERIC, ()),
    "hostile": lambda: compared(
        [HOSTILE], names=[HOSTILE, "fc"], subject=HOSTILE, notes=(HOSTILE,), environment={HOSTILE: HOSTILE},
        divergence=parity.Divergence(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (parity.Cause(HOSTILE, 0.0),), (
            parity.LayerResult(HOSTILE, HOSTILE, HOSTILE, math.inf, False, HOSTILE),
        )),
    ),
    "no numbers": lambda: Comparison(
        Level.SEMANTIC,
        measuring.judge(measuring.measure({"i": ONE, "a": ONE}, {"i": ONE, "b": ONE}, Kind.STATE), Policy()),
    ),
    "zeros": lambda: Comparison(
        Level.SEMANTIC,
        measuring.judge(measuring.measure(ZEROS, ZEROS, Kind.OUTPUT), Policy()),
        curve=Curve((5,), (0.0,), (0.0,), (0.0,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_markup_is_strict_and_needs_nothing(report, tmp_path):
    c = REPORTS[report]()
    root = page(c, tmp_path)
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    for each in root.iter():
        for name, value in each.attrib.items():
            assert not name.startswith("on"), f"{each.tag} has {name}"
            assert name not in ("src", "href", "srcset", "action"), f"{each.tag} has {name}"
            if name in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids), value
    assert [each.tag for each in root.iter("script")] == ["script"]
    assert {each.tag for each in root.iter()} & {"img", "link", "iframe", "object", "base", "form"} == set()
    assert not re.search(r"url\(|@import|https?:", root.find("head/style").text)
    policy = root.find("head/meta[@http-equiv]").get("content")
    digest = base64.b64encode(hashlib.sha256(root.find("body/script").text.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for picture in root.iter("svg"):
        assert picture.get("aria-hidden") == "true" or picture.find("title") is not None
    assert "nan" not in "".join(each.get("d", "") for each in root.iter("path"))


@pytest.mark.parametrize("report", REPORTS)
def test_the_verdict_is_in_words(report, tmp_path):
    c = REPORTS[report]()
    root = page(c, tmp_path)
    headline = texts(root.find(".//h1"))
    start = "Nothing" if not c.rows else "The same" if c.same else "Different"
    assert re.match(rf"[✓✗] {start} ", headline)
    assert texts(root.find("head/title")).startswith(headline[2:])


def rows_of(root: ElementTree.Element) -> list[ElementTree.Element]:
    return root.findall(".//tbody/tr")


def test_everything_about_a_difference(tmp_path):
    c = REPORTS["different"]()
    root = page(c, tmp_path)
    cause = root.find(".//section[@class='cause']")
    assert texts(cause.find("h2")) == "First divergence: norm in torch, LayerNorm_0 in Flax (LayerNorm)."
    assert texts(cause.find(".//strong")) == "Likely cause: it is equal to 2e-15 if epsilon=1e-05."
    layers = root.findall(".//ol/li")
    assert [layer.get("class") for layer in layers] == ["same", "different"]
    assert "norm LayerNorm ✗ 4.5e-06" in texts(layers[1])
    assert layers[1].get("title") == "norm (LayerNorm): epsilon is 1e-06"
    heads, first = [texts(each) for each in root.findall(".//thead//th")], rows_of(root)[0]
    assert len(heads) == len(first) == len(root.findall(".//thead//button"))
    cells = dict(zip(heads, first, strict=True))
    assert "step" not in cells
    d = c.different[0].difference
    assert texts(cells["tensor"]) == "fc1.bias relative 3e-07 is above 1e-10"
    assert (texts(cells["verdict"]), texts(cells["relative"])) == ("✗ different", "3.0e-07")
    assert float(cells["relative"].get("data-v")) == d.relative
    assert (texts(cells["limit"]), texts(cells["worst at"])) == ("1.0e-10", str(list(d.index)))
    assert cells["candidate"].get("data-v") == f"{d.candidate:.12g}"
    whole = texts(root)
    for text in ("3 kinks.", "jax 0.10.2", "outside the envelope from step 3", "first outside: step 3"):
        assert text in whole


def test_every_outcome_has_a_mark_of_its_own(tmp_path):
    c = numeric(60)
    sampled = next(row for row in c.rows if row.difference.samples)
    worst = dataclasses.replace(sampled, outcome=Outcome.CONSTANTS)
    root = page(dataclasses.replace(c, rows=(worst, *c.rows)), tmp_path)
    marks = {each.get("class"): each.find("path").get("d") for each in root.iterfind(".//svg/g")}
    assert set(marks) == {each.value for each in Outcome}
    assert len({re.sub(r"M[\d.]+ [\d.]+", "M", d).split("M")[1] for d in marks.values()}) == 5
    for d in marks.values():
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)", d):
            assert 50 < float(x) < 360
            assert 0 < float(y) < 290


def test_a_long_comparison_is_cut_and_counted(tmp_path):
    c = numeric(600)
    root = page(c, tmp_path)
    assert len(rows_of(root)) == 1000
    assert "And 198 more same." in texts(root)
    assert "And 2 more noise." in texts(root)
    assert len(root.findall(".//ol/li")) == 600
    assert (tmp_path / "report.html").stat().st_size < 2_500_000


def test_names_stay_text(tmp_path):
    c = REPORTS["hostile"]()
    root = page(c, tmp_path)
    shown = HOSTILE.replace("\x00", "\ufffd")
    name = rows_of(root)[0].find("th")
    assert name.text == shown
    assert shown in root.find("head/title").text


def circumstances(root: ElementTree.Element) -> str:
    return texts(root.find(".//header/p[2]"))


def test_it_says_when_with_what_and_by_which_command(monkeypatch, tmp_path):
    found = {"date": "2026-01-02 03:04 UTC", "command": "jaxpar parity spec.py", "jax": "0.10.2", "seed": "0"}
    root = page(compared(environment=found), tmp_path)
    assert circumstances(root) == "2026-01-02 03:04 UTC · jax 0.10.2 · jaxpar parity spec.py"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert circumstances(page(compared(), tmp_path)) == "1970-01-02 00:00 UTC"


def more(root: ElementTree.Element) -> list[tuple[str, str | None]]:
    """The pages that the first divergence names, and their addresses."""
    line = root.find(".//section[@class='cause']/p[last()]")
    assert texts(line).startswith("More: ")
    return [(each.text, each.get("href")) for each in line]


ADDRESSES = {
    "": None,
    "https://example.org/jaxpar/": "https://example.org/jaxpar/nn_norms.html",
    "../site": "../site/nn_norms.html",
    "javascript:alert(1)": None,
    "//example.org": None,
    '"><script>': '"><script>/nn_norms.html',
}


@pytest.mark.parametrize("base", ADDRESSES)
def test_a_cause_names_its_page_and_links_it_where_the_site_is_known(base, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXPAR_DOCS", base)
    found = more(page(compared(["fc1.bias"], divergence=DIVERGENCE), tmp_path))
    assert [name for name, _ in found] == ["docs/nn_norms.md", "docs/compare.md"]
    assert found[0][1] == ADDRESSES[base]


def test_other_places_name_their_pages_too():
    d = dataclasses.replace(DIVERGENCE, others=(dataclasses.replace(DIVERGENCE, kind="Conv2d"), DIVERGENCE))
    names = [each.name for each in html.pages(compared(divergence=d))]
    assert names == ["docs/nn_norms.md", "docs/nn_conv.md", "docs/compare.md"]


def test_every_page_that_a_cause_names_is_there():
    docs = Path(__file__).resolve().parents[1] / "docs"
    for name in (*html.BY_KIND.values(), html.CATALOGUE):
        assert (docs / f"{name}.md").exists(), name


KINDS = {
    "nn_norms": ("BatchNorm2d", "LocalResponseNorm", "LayerNorm"),
    "nn_conv": ("Conv1d", "ConvTranspose3d"),
    "nn_recurrent": ("LSTM", "GRUCell"),
    "nn_attention": ("MultiheadAttention", "TransformerEncoderLayer"),
    "nn_embedding": ("EmbeddingBag",),
    "nn_pooling": ("MaxPool2d", "AdaptiveAvgPool1d"),
    "nn_dropout": ("LeakyReLU", "ReLU6", "Hardswish", "Softshrink", "Dropout2d"),
    "nn_resize": ("ZeroPad2d", "Upsample", "PixelShuffle"),
    "losses": ("CrossEntropyLoss", "loss"),
    "optim": ("AdamW", "RAdam", "Adagrad", "SGD"),
    None: ("Linear", "Attend", "LSTMNet", "SGDHead"),
}


@pytest.mark.parametrize(("page", "kind"), [(page, kind) for page, kinds in KINDS.items() for kind in kinds])
def test_a_torch_class_belongs_to_a_page(page, kind):
    place = dataclasses.replace(DIVERGENCE, kind=kind)
    names = [each.name for each in html.pages(compared(divergence=place))]
    assert names == [f"docs/{each}.md" for each in (page, "compare") if each]


def test_without_jinja2_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxpar\[parity\]'"):
        compared().save_html(tmp_path / "report.html")


def luminance(colour: str) -> float:
    """Of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(scheme, tmp_path):
    """A contrast of 4.5, WCAG's AA, on both grounds."""
    style = page(compared(), tmp_path).find("head/style").text
    colours = dict(re.findall(r"--(\w+): (#\w{6})", re.findall(r":root \{(.*?)\}", style, re.S)[scheme]))
    for name in ("text", "soft", *(each.value for each in Outcome)):
        for ground in ("ground", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, f"{name} on {ground}"
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") < 4.5  # WCAG's own example of too little


def test_the_text_names_the_first_and_the_last_step_of_a_trajectory():
    curve = Curve((5, 6, 9), (1e-7, 2e-7, 3e-7), (1e-8, 1e-8, 1e-8), (1e-6, 1e-6, 1e-6))
    text = str(compared(curve=curve))
    assert "error 1.0e-07 at step 5, 3.0e-07 at step 9, never outside" in text
