from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from polyphony.report import Run, comparison, report_of, write_report
from polyphony.report.chart import _SETTINGS, TRUETYPE, Chart, Panel
from polyphony.report.page import SECTIONS
from polyphony.report.tables import Numbers

HOSTILE = '<script>alert("x")</script>&<marquee>$x$'


class Elements(HTMLParser):
    """All start tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_names_stay_text(small_run: Path):
    facts = json.loads((small_run / "recipe.json").read_text())
    facts["recipe"]["data"]["name"] = HOSTILE  # a path; names of recipes and methods cannot be hostile
    facts["machine"]["processor"] = HOSTILE
    (small_run / "recipe.json").write_text(json.dumps(facts))
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    columns = "model,seed,unknown,score,auroc,aupr,fpr95,known_entropy,unknown_entropy"
    row = f"kd,0,{quoted},entropy,1,1,0,0,0"
    (small_run / "analysis" / "ood.csv").write_text(f"{columns}\n{row}\n")
    report = report_of(Run.open(small_run))
    page = Elements(report.html)
    assert not [tag for tag, _ in page.tags if tag in ("script", "marquee")]
    assert HOSTILE in page.text
    for part in report.pieces[:3]:
        assert not any(b"<script" in data for name, data in part.files().items() if name.endswith("svg"))


def test_the_page_loads_nothing_from_elsewhere(reported: Path):
    page = Elements((reported / "report.html").read_text())
    links = [
        value
        for tag, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "data", "action") and value
    ]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in page.text
    assert not re.search(r"url\((?!#|\"#)", page.text)


def test_equal_runs_give_equal_bytes(reported: Path):
    again = report_of(Run.open(reported))
    assert again.html == (reported / "report.html").read_text()
    files = {name: data for part in again.pieces[::3] for name, data in part.files().items()}
    assert {Path(name).suffix for name in files} == {".svg", ".pdf", ".csv", ".md", ".tex"}
    assert files == {name: (reported / "figures" / name).read_bytes() for name in files}


def test_a_report_is_a_page_and_every_figure_and_table_as_files(reported: Path):
    names = {path.name for path in (reported / "figures").iterdir()}
    charts = {
        "diversity-teachers", "diversity-students", "diversity-external", "members", "dee", "price", "costs",
        "risk-coverage",
        "reliability", "entropy-svhn", "corrupted-digits-c", "jacobians", "snr", "learning", "shown",
    }  # fmt: skip
    tables = {
        "scores-calibrated", "scores-standard", "price", "members", "differences", "unknown-svhn",
        "corrupted-digits-c", "jacobians",
    }  # fmt: skip
    expected = {f"{chart}.{kind}" for chart in charts for kind in ("svg", "pdf", "csv")}
    assert names == expected | {f"{table}.{kind}" for table in tables for kind in ("md", "tex")}
    html = (reported / "report.html").read_text()
    assert all(f'id="figure-{chart}"' in html for chart in charts)
    assert all(f'id="table-{table}"' in html for table in tables)


def test_a_users_own_figure_is_a_function_in_the_list_of_sections(small_run: Path):
    def own(run: Run) -> Chart:
        nlls = {method: run.mean(method, "nll").mean for method in run.methods}
        panel = Panel("", lambda axes: axes.bar(list(nlls), list(nlls.values())))
        return Chart("own", "My own", "Lower is better.", (panel,), Numbers(("a", "b"), tuple(nlls.items())))

    report = report_of(Run.open(small_run), [*SECTIONS[:1], ("More", "more", (own,))])
    page = Elements(report.html)
    assert {"figure-own", "more"} <= {attributes.get("id") for _, attributes in page.tags}
    assert "My own" in page.text
    assert {"own.svg", "own.pdf", "own.csv"} <= set(report.files())


def test_files_have_no_date_and_pdfs_are_complete(reported: Path):
    for path in (reported / "figures").iterdir():
        data = path.read_bytes()
        assert b"CreationDate" not in data, path
        assert b"<dc:date>" not in data, path
        assert path.suffix != ".pdf" or (data.startswith(b"%PDF") and data.rstrip().endswith(b"%%EOF"))


def test_text_in_a_pdf_is_text_in_a_truetype_font(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(_SETTINGS, "pdf.fonttype", TRUETYPE)
    panel = Panel("", lambda axes: axes.plot([0, 1]))
    pdf = Chart("own", "", "", (panel,), Numbers((), ())).files()["own.pdf"]
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_figures_on_the_page_take_their_colours_from_it(reported: Path):
    html = (reported / "report.html").read_text()
    drawings = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', html, flags=re.DOTALL)
    assert len(drawings) > 25
    for drawing in drawings:
        # Everything drawn is a variable, but black, which clip paths and glyph-less text never show.
        literal = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawing)) - {"#000000", "#ffffff"}
        assert not literal
        assert "var(--" in drawing


def test_ids_of_the_page_are_unique(reported: Path):
    page = Elements((reported / "report.html").read_text())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_missing_parts_are_named_with_what_to_do(small_run: Path):
    text = " ".join(Elements(report_of(Run.open(small_run)).html).text.split())
    assert text.count("Not shown") == 1  # one list
    missing = text[text.index("Not shown") :]
    for command in ("analyse RUN snr", "analyse RUN latency", "evaluate RUN --ood NAME"):
        assert f"run 'polyphony {command}'" in missing


def test_the_page_begins_with_one_teacher(reported: Path):
    text = " ".join(Elements((reported / "report.html").read_text()).text.split())
    first = text[text.index(" at 1.2× the latency of one teacher, has a calibrated NLL of ") :]
    assert "on test images. Your best single network has " in first[:200]


def test_the_papers_numbers_are_labelled_when_the_recipe_differs(small_run: Path):
    facts = json.loads((small_run / "recipe.json").read_text())
    facts["recipe"]["name"] = "cifar10-resnet32-be4"
    (small_run / "recipe.json").write_text(json.dumps(facts))
    text = " ".join(Elements(report_of(Run.open(small_run)).html).text.split())
    assert "for orientation only: the data are not cifar10" in text
    assert "paper 0.181 ± 0.002" in text


def test_several_runs_are_compared_in_one_page(maker, tmp_path: Path):
    first, second = maker.write(tmp_path / "one", "one"), maker.write(tmp_path / "two", "two")
    page = write_report([first, second], tmp_path / "both.html")
    seen = Elements(page.read_text())
    text = " ".join(seen.text.split())
    assert "2 runs compared" in text
    assert "tested on different images" not in text
    rows = [name for name in ("one: kd-ods", "two: kd-ods", "one: teachers", "two: teachers") if name in text]
    assert len(rows) == 4
    assert len([1 for tag, a in seen.tags if tag == "svg" and a.get("role") == "img"]) == 5
    assert not (first / "report.html").exists()


def test_runs_on_other_test_images_come_with_a_warning(maker, tmp_path: Path):
    first, second = maker.write(tmp_path / "one"), maker.write(tmp_path / "two")
    path = second / "recipe.json"
    path.write_text(path.read_text().replace('"test": "cc"', '"test": "dd"'))
    text = comparison([Run.open(first), Run.open(second)]).html
    assert "tested on different images" in text
    assert "one: kd" in text  # two recipes of one name are told apart by their folders


def test_names_from_files_do_not_leave_the_folder(full_run: Path):
    path = full_run / "analysis" / "corrupted.csv"
    path.write_text(path.read_text().replace("digits-c", "../../digits/c"))
    names = [piece.name for piece in report_of(Run.open(full_run)).pieces]
    assert "corrupted-..-..-digits-c" in names
    assert not any("/" in name for name in names)


@pytest.mark.parametrize("broken", ["recipe.json", "scores.csv"])
def test_nothing_is_written_for_a_broken_run(small_run: Path, broken: str):
    (small_run / broken).unlink()
    with pytest.raises(Exception, match=broken.replace(".", r"\.")):
        write_report([small_run])
    assert not (small_run / "report.html").exists()
    assert not (small_run / "figures").exists()
