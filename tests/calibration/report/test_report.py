"""The page of a calibration loads nothing, shows held-out shapes only, and survives odd names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibration.cli.main import app
from calibration.families.base import HeldOutErrors
from calibration.profile.run import profile
from calibration.profile.session.session import Session
from calibration.profile.session.shape import FIT, HELD_OUT
from calibration.report.from_profile import read_profile
from calibration.report.held_out import shape_keys, unseen
from calibration.report.material import OFF_GRID, CalibrationReport
from calibration.report.operator_page import operator_page, verdict
from calibration.report.write import write_report
from calibration.rows.dataset import write_rows
from catalogs.errors import InputError
from catalogs.ui.html_page import Page, PageSection, cards, paragraph, render, table
from tests.calibration.invented_accelerator import decode_rows
from tests.calibration.roofline_measurer import QUIET, UNIT, RooflineMeasurer, job

ODD = '</script><img src="http://evil.example/x.png">&'
FACTS: dict[str, Any] = {
    "hardware": "local",
    "device": "cpu",
    "started_at": "2026-01-02T00:00:00",
    "libraries": {"torch": "2.0"},
    "cpu": {"model": ODD, "last_level_cache_mib": 0.0},
    "memory_gib": 16.0,
    "seed": 0,
    "power": "no power: RAPL is not readable",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profile")
    session = Session.open(out, QUIET.line)
    profile(job(160.0), session, RooflineMeasurer(), QUIET)
    (out / "manifest.json").write_text(json.dumps(FACTS))
    return out


@pytest.fixture(scope="module")
def material(folder: Path) -> CalibrationReport:
    return read_profile(folder)


@pytest.fixture(scope="module")
def page(material: CalibrationReport) -> str:
    return render(operator_page(material))


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)\s*=""", without_scripts(page))
    assert not re.findall(r"<script[^>]+src", page)
    assert not re.findall(r"""url\(|@import""", without_scripts(page))
    assert "showSendToCloud: false" in page
    assert page.count("plotly.js v") == 1  # put in once, however many charts there are
    assert len(page.encode()) < 6e6


def test_names_are_escaped_in_text_and_in_charts(page: str) -> None:
    assert ODD not in page
    assert "&lt;/script&gt;&lt;img src=&quot;http://evil.example/x.png&quot;&gt;&amp;" in page
    odd = [paragraph(ODD), cards([(ODD, ODD)]), table((ODD,), [(ODD,)], ODD)]
    assert ODD not in render(Page(ODD, ODD, [PageSection(ODD, odd)], ODD))


def test_summary_comes_first_and_every_family_has_its_error(page: str, material: CalibrationReport) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles[0] == "Summary"
    assert "Roofline" in titles
    assert {x.errors.family for x in material.errors} == {
        "gemm",
        "prefill_attention",
        "decode_attention",
        "elementwise",
        "moe",
    }
    assert "RAPL is not readable" in page  # why there is no power


def test_what_is_shown_as_held_out_was_not_fitted(folder: Path, material: CalibrationReport) -> None:
    held = material.held
    assert held is not None
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    n_held = sum(r["role"] == HELD_OUT and r["family"] == "gemm" and r["dtype"] == "bf16" for r in rows)
    shown = held[(held.family == "gemm") & (held.how == OFF_GRID)]
    assert 0 < len(shown) <= sum(r["role"] == HELD_OUT and r["family"] == "gemm" for r in rows)
    assert n_held > 0


def test_a_fitted_shape_planted_among_the_held_out_is_caught(folder: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    before = read_profile(folder).held
    fitted = next(r for r in lines if r["family"] == "decode_attention" and r["role"] == FIT)
    planted = {**fitted, "role": HELD_OUT, "key": fitted["key"].replace("/fit/", "/held_out/")}
    (tmp_path / "manifest.json").write_text(json.dumps(FACTS))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*lines, planted]))
    after = read_profile(tmp_path).held
    assert before is not None
    assert after is not None
    assert (before.how == OFF_GRID).sum() == (after.how == OFF_GRID).sum()


def test_unseen_compares_whole_shapes() -> None:
    rows = decode_rows(UNIT).head(6)
    assert len(unseen("decode_attention", rows, rows.head(2))) == 4
    other = rows.assign(n_heads=rows.n_heads * 2)
    assert len(unseen("decode_attention", other, rows)) == 6
    assert len(set(shape_keys("decode_attention", rows))) == 6


@pytest.mark.parametrize(
    ("n", "median", "p90", "word"),
    [(9, 0.01, 0.01, "too few"), (50, 0.04, 0.1, "good"), (50, 0.04, 0.8, "wide tail"), (50, 0.5, 0.9, "poor")],
)
def test_words_for_errors(n: int, median: float, p90: float, word: str) -> None:
    assert word in verdict(HeldOutErrors("gemm", OFF_GRID, n, median, p90, 0.0))


def test_a_bundle_alone_says_what_needs_rows(tmp_path: Path) -> None:
    out = tmp_path / "b.html"
    done = CliRunner().invoke(app, ["report", "rtx4090", "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = without_scripts(out.read_text())
    assert "Given its rows (--rows DIR) this page also shows predicted against measured" in text
    assert "Coverage of the shapes that the planner uses" in text
    assert "LLMServingSim" in text


def test_a_bundle_with_rows_shows_predictions(tmp_path: Path) -> None:
    from catalogs.hardware.catalog import parse_hardware

    write_rows(tmp_path / "rows", {"decode_attention": decode_rows(parse_hardware("rtx4090").accelerator)})
    text = without_scripts(write_report("rtx4090", tmp_path / "b.html", tmp_path / "rows").read_text())
    assert "Predicted against measured, unseen shapes only" in text


def test_rows_of_a_family_too_small_to_hold_out_leave_the_page_whole(tmp_path: Path) -> None:
    from catalogs.hardware.catalog import parse_hardware

    rows = decode_rows(parse_hardware("rtx4090").accelerator)
    one = rows.head(1).assign(kind="norm", tokens=8.0, bytes_per_token=8192.0)
    write_rows(tmp_path / "rows", {"decode_attention": rows, "elementwise": one})
    text = without_scripts(write_report("rtx4090", tmp_path / "b.html", tmp_path / "rows").read_text())
    assert "Errors against size" in text


@pytest.mark.parametrize("source", ["nowhere", "."])
def test_what_is_no_calibration_is_one_line(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        write_report(source, tmp_path / "x.html")
    assert not list(tmp_path.iterdir())
