"""From rows to the bundle that plan loads, without torch: an invented measurer, then fit, install and find."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from calibration.bundles import engine_calibration
from calibration.bundles.bundle import load_bundle, user_folder
from calibration.bundles.files import read_bundle, write_facts
from calibration.cli.main import app
from calibration.fitting.fit import fit_bundle
from calibration.operators.operators import DecodeAttention, Gemm
from calibration.operators.roofline import roofline_s
from calibration.profile.local_run import ProfileResult, fit_and_install
from calibration.profile.peaks import measured
from calibration.profile.profile_bundle import MOST_CONTENDED, fit_profile, install, reason_against
from calibration.profile.run import profile
from calibration.profile.session.session import Session
from calibration.profile.session.tables import contended_share
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.local import Cpu, MeasuredPeaks, cpu_hardware, with_measured_peaks
from catalogs.ui.entry_point import run_command
from catalogs.ui.words import percent
from tests.calibration.invented_accelerator import gemm_rows
from tests.calibration.roofline_measurer import QUIET, UNIT, RooflineMeasurer, job

FACTS: dict[str, Any] = {"device": "cpu", "started_at": "2026-01-02T00:00:00", "libraries": {"torch": "2.0"}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def session(tmp_path: Path) -> Session:
    found = Session.open(tmp_path / "p", QUIET.line)
    profile(job(500.0), found, RooflineMeasurer(), QUIET)
    return found


def test_fit_recovers_the_law_on_held_out_shapes_and_is_found_by_name(home: Path, session: Session) -> None:
    path = fit_profile(session.rows, FACTS, UNIT, home / "p")
    facts, _ = read_bundle(path)
    assert set(facts.families) == {"gemm", "prefill_attention", "decode_attention", "elementwise", "moe"}
    assert facts.engine == "torch"
    inside = {f: r.held_out[0] for f, r in facts.families.items() if r.held_out}
    assert {e.region for e in inside.values()} == {"inside"}
    assert inside["gemm"].median_abs_rel_error < 0.05
    install(path, UNIT.name)
    bundle = load_bundle(UNIT)
    assert bundle.name == "local torch 2.0"
    op = Gemm(48, 3000, 3000, "bf16")
    assert float(bundle.cost(op).seconds) == pytest.approx(2 * float(roofline_s(op, UNIT)), rel=0.1)
    assert bundle.relative_error("gemm") == inside["gemm"].median_abs_rel_error
    host_times = engine_calibration.file_of(UNIT.name, "vllm")
    host_times.parent.mkdir()
    host_times.write_text("measured by verify")
    install(path, UNIT.name)  # again, over itself
    assert (user_folder() / "local" / "bundle.json").is_file()
    assert host_times.read_text() == "measured by verify"  # a new profile does not take them away
    assert sorted(f.name for f in (user_folder()).iterdir()) == ["local"]


def test_contention_is_said_wherever_the_bundle_is_used(home: Path, session: Session) -> None:
    for row in session.rows:
        row["contended"] = True
    install(fit_profile(session.rows, FACTS, UNIT, home / "p"), UNIT.name)
    assert any(
        "100 % of the rows were measured while other processes used the machine" in n for n in load_bundle(UNIT).notices
    )


def test_a_disturbed_profile_does_not_replace_an_undisturbed_one(home: Path, session: Session) -> None:
    disturbed = [dict(r, contended=True) for r in session.rows]
    clean, noisy = fit_profile(session.rows, FACTS, UNIT, home / "p"), fit_profile(disturbed, FACTS, UNIT, home / "q")
    assert reason_against(noisy, UNIT.name, MOST_CONTENDED) is None  # better than none
    install(noisy, UNIT.name)
    assert reason_against(clean, UNIT.name, 0.0) is None
    install(clean, UNIT.name)
    why = "20 % of the rows were measured while other processes used the machine, and those of the calibration in use"
    assert str(reason_against(noisy, UNIT.name, 0.2)).startswith(why)
    assert reason_against(clean, UNIT.name, 0.0) is None


@pytest.mark.parametrize(("n_contended", "is_installed"), [(0, True), (4, True), (6, False), (10, False)])
def test_a_profile_with_mostly_contended_rows_is_installed_only_by_request(
    home: Path, session: Session, n_contended: int, is_installed: bool
) -> None:
    """Of every ten rows `n_contended` are contended, and no calibration is installed before."""
    for number, row in enumerate(session.rows):
        row["contended"] = number % 10 < n_contended
    done = ProfileResult(home / "p", session, FACTS, UNIT, {}, None)  # type: ignore[arg-type]
    found = fit_and_install(done)
    assert (found.folder is not None, found.why_not == "") == (is_installed, is_installed)
    assert (user_folder() / UNIT.name / "bundle.json").is_file() == is_installed
    if not is_installed:
        share = f"{percent(contended_share(session.rows))} of the rows were measured while other processes"
        assert found.why_not.startswith(share)
        assert fit_and_install(done, allow_contended=True).folder is not None
        assert (user_folder() / UNIT.name / "bundle.json").is_file()


def test_the_command_says_what_to_do_about_contended_rows(
    home: Path, session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in session.rows:
        row["contended"] = True
    done = ProfileResult(home / "p", session, FACTS, UNIT, {}, None)  # type: ignore[arg-type]
    monkeypatch.setattr("calibration.cli.commands.run.profiled", lambda *_: done)
    assert run_command("calibrate", app, ["run"]) == 1
    text = capsys.readouterr().out
    assert "not installed: 100 % of the rows were measured while other processes used the machine" in text
    assert "end the other processes" in text
    assert "or --allow-contended installs such a profile" in text
    assert run_command("calibrate", app, ["run", "--json", "-"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["installed"] is None
    assert answer["not_installed"].startswith("100 % of the rows")
    assert run_command("calibrate", app, ["run", "--allow-contended", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["not_installed"] is None


def test_a_disturbed_bundle_of_an_earlier_release_may_be_replaced(home: Path, session: Session) -> None:
    disturbed = [dict(r, contended=True) for r in session.rows]
    noisy = fit_profile(disturbed, FACTS, UNIT, home / "q")
    facts, _ = read_bundle(noisy)
    before = ["100 % of the rows were measured while others used the machine: times may be high"]
    write_facts(facts.model_copy(update={"notices": before}), noisy)
    install(noisy, UNIT.name)
    noisy = fit_profile(disturbed, FACTS, UNIT, home / "r")
    assert reason_against(noisy, UNIT.name, 0.4) is None


def test_uneven_decode_batches_set_their_own_alpha(home: Path, session: Session) -> None:
    facts, _ = read_bundle(fit_profile(session.rows, FACTS, UNIT, home / "p"))
    assert facts.families["decode_attention"].facts["skew_alpha"] == pytest.approx(0.0, abs=0.02)  # bytes only
    for row in session.rows:
        if row["family"] == "decode_attention" and row["role"] == "check":
            longest = row["sequences"] * row["max_context_tokens"]
            heads = (row["n_heads"], row["n_kv_heads"], row["head_dim"], row["kv_dtype"])
            as_long = DecodeAttention(row["sequences"], longest, row["max_context_tokens"], *heads)
            row["seconds"] = 2 * float(roofline_s(as_long, UNIT)) + 1e-6  # as if all were the longest
    facts, _ = read_bundle(fit_profile(session.rows, FACTS, UNIT, home / "p"))
    assert facts.families["decode_attention"].facts["skew_alpha"] > 0.8


def test_no_usable_row_is_one_line(home: Path, session: Session) -> None:
    for row in session.rows:
        row["seconds"] = row.get("seconds", 1.0) / 1e6
    with pytest.raises(InputError, match="no measured row obeys"):
        fit_profile(session.rows, FACTS, UNIT, home / "p")


def test_measured_peaks_are_what_the_rows_reached(session: Session) -> None:
    unit = measured(UNIT, session.rows, 32e6)
    assert unit.peak_flops == pytest.approx(UNIT.peak_flops, rel=1e-3)
    assert unit.memory_bandwidth_bytes_per_s == pytest.approx(20e9, rel=1e-3)
    for row in session.rows:
        if row["family"] == "gemm" and row["dtype"] == "bf16":
            row["seconds"] /= 4
    faster = measured(UNIT, session.rows, 32e6)
    assert faster.peak_flops["bf16"] == pytest.approx(2 * UNIT.peak_flops["bf16"], rel=0.02)
    assert faster.peak_flops["fp32"] == unit.peak_flops["fp32"]


@pytest.mark.usefixtures("home")
def test_peaks_are_kept_for_this_machine_and_no_other() -> None:
    mine = cpu_hardware(Cpu("Mine", 2, 2e9, frozenset({"avx2"}), 8e9))
    other = cpu_hardware(Cpu("Other", 2, 2e9, frozenset({"avx2"}), 8e9))
    assert with_measured_peaks(mine) == mine
    path = MeasuredPeaks.of(UNIT, "2026-01-02", "test").model_copy(update={"machine": "Mine"}).save()
    found = with_measured_peaks(mine)
    assert found.accelerator.peak_flops == pytest.approx(UNIT.peak_flops)
    assert found.accelerator.memory_bytes == 8e9
    assert "measured 2026-01-02" in found.notices[0]
    assert with_measured_peaks(other) == other
    path.write_text("machine: [")
    with pytest.raises(InputError, match="delete the file"):
        with_measured_peaks(mine)


def test_families_not_measured_here_come_from_the_shipped_bundle(home: Path) -> None:
    unit = parse_hardware("h100").accelerator
    shipped = load_bundle(unit)
    fit_bundle({"gemm": gemm_rows(unit)}, unit, home / "data" / "llm-capacity-planner" / "calibrations" / "h100")
    own = load_bundle(unit)
    assert own.models.keys() == shipped.models.keys()
    op = Gemm(64, 4096, 4096, "bf16")
    assert float(own.cost(op).seconds) != float(shipped.cost(op).seconds)
    assert any("from the shipped calibration" in n and "gemm" not in n for n in own.notices)


def test_a_disk_that_fills_while_the_tables_are_written_is_one_line(
    home: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (session.folder / "rows.jsonl").read_bytes()

    def full(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr("pandas.DataFrame.to_parquet", full)
    with pytest.raises(InputError, match=r"No space left on device.*rows\.jsonl are kept"):
        fit_profile(session.rows, FACTS, UNIT, home / "p")
    assert (session.folder / "rows.jsonl").read_bytes() == before
    assert not list(session.folder.glob(".*part"))
