"""Laws of a profiling session: killed and resumed it measures the same, nothing twice; damage costs its own lines."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibration.profile.kernels import drift_reference as drift
from calibration.profile.local_run import default_folder
from calibration.profile.run import ProgressReporter, profile, start
from calibration.profile.session import manifest
from calibration.profile.session.difference import compare
from calibration.profile.session.session import ROWS_NAME, Session
from catalogs.errors import InputError
from tests.calibration.roofline_measurer import QUIET, Killed, RooflineMeasurer, job
from tests.signalled import started


def test_rows_cut_at_any_byte_are_kept_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    whole = Session.open(tmp_path, QUIET.line)
    for n in range(3):
        whole.append({"key": f"k{n}", "family": "gemm", "role": "fit", "status": "ok", "elapsed_s": 0.1})
    data = path.read_bytes()
    for n_bytes in range(len(data) + 1):
        path.write_bytes(data[:n_bytes])
        n = data[:n_bytes].count(b"\n")
        assert Session.read(tmp_path).rows == whole.rows[:n]
        assert path.read_bytes() == data[:n_bytes]  # reading changes nothing
        lines: list[str] = []
        again = Session.open(tmp_path, lines.append)
        assert again.rows == whole.rows[:n]
        assert len(lines) == (n_bytes not in (0, *(i + 1 for i, b in enumerate(data) if b == 10)))
        for row in whole.rows[n:]:
            again.append(row)
        assert path.read_bytes() == data


HOLDER = """
import sys
from pathlib import Path
from calibration.profile.session.session import Session
session = Session.open(Path(sys.argv[1]), print)
print("open", flush=True)
sys.stdin.readline()
"""


def test_two_processes_do_not_measure_into_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with started(command, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(InputError, match="another process measures into this folder"):
            Session.open(tmp_path, QUIET.line)
        assert Session.read(tmp_path).rows == []
        holder.kill()
        holder.wait()
        assert Session.open(tmp_path, QUIET.line).rows == []


def keys(folder: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder / ROWS_NAME).read_text().splitlines()]


@pytest.mark.parametrize("killed_at", [0, 1, 7, 40])
def test_killed_and_resumed_is_the_same_profile(tmp_path: Path, killed_at: int) -> None:
    whole = Session.open(tmp_path / "whole", QUIET.line)
    profile(job(60.0), whole, RooflineMeasurer(), QUIET)
    with pytest.raises(Killed):
        profile(job(60.0), Session.open(tmp_path / "cut", QUIET.line), RooflineMeasurer(killed_at=killed_at), QUIET)
    before = keys(tmp_path / "cut") if killed_at else []
    profile(job(60.0), Session.open(tmp_path / "cut", QUIET.line), RooflineMeasurer(), QUIET)
    after = keys(tmp_path / "cut")
    assert after[: len(before)] == before
    assert len(before) == killed_at
    assert len(after) == len(set(after)) == 60
    assert after == keys(tmp_path / "whole")


def test_a_cut_last_line_is_dropped_and_measured_again(tmp_path: Path) -> None:
    profile(job(20.0), Session.open(tmp_path, QUIET.line), RooflineMeasurer(), QUIET)
    full = keys(tmp_path)
    path = tmp_path / ROWS_NAME
    path.write_bytes(path.read_bytes()[:-25])
    messages: list[str] = []
    session = Session.open(tmp_path, messages.append)
    assert len(session.rows) == 19
    assert len(messages) == 1
    assert "dropped 1" in messages[0]
    profile(job(20.0), session, RooflineMeasurer(), QUIET)
    assert keys(tmp_path) == full


def test_damage_and_repeats_in_the_middle_cost_only_their_lines(tmp_path: Path) -> None:
    profile(job(10.0), Session.open(tmp_path, QUIET.line), RooflineMeasurer(), QUIET)
    path = tmp_path / ROWS_NAME
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], '{"key": "half', "\x00\x00", lines[1], *lines[3:]]) + "\n")
    messages: list[str] = []
    assert [r["key"] for r in Session.open(tmp_path, messages.append).rows] == [
        json.loads(line)["key"] for line in lines
    ]
    assert "dropped 3" in messages[0]
    assert path.read_text().splitlines() == lines


def test_full_disk_is_one_line_and_keeps_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.open(tmp_path, QUIET.line)
    session.append({"key": "a", "family": "gemm", "role": "fit", "status": "ok", "elapsed_s": 1.0})

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*1 rows are kept"):
        session.append({"key": "b", "family": "gemm", "role": "fit", "status": "ok", "elapsed_s": 1.0})
    monkeypatch.undo()
    assert [r["key"] for r in Session.open(tmp_path, pytest.fail).rows] == ["a"]


def test_out_of_memory_is_recorded_and_larger_shapes_are_left_out(tmp_path: Path) -> None:
    session = Session.open(tmp_path, QUIET.line)
    counts = profile(job(400.0), session, RooflineMeasurer(memory_bytes=1e8), QUIET)
    failed = [r for r in session.rows if r["status"] == "oom"]
    assert counts["oom"] == len(failed) > 0
    assert counts["ok"] > 200
    of_one_queue = [r for r in failed if r["family"] == "gemm" and r["dtype"] == "bf16"]
    sizes = [r["n"] * r["k"] * 2.0 for r in of_one_queue]
    assert sizes == sorted(sizes, reverse=True)  # after a failure only smaller ones were tried


def facts(**changes: Any) -> dict[str, Any]:
    base = {"hardware": "local", "device": "cpu", "cpu": {"model": "X", "threads": 2}, "libraries": {"torch": "1"}}
    return {**base, "seed": 0, "started_at": "now", "finished_at": None, **changes}


def test_a_folder_of_another_machine_is_refused(tmp_path: Path) -> None:
    session = start(tmp_path, facts(), QUIET)
    profile(job(5.0), session, RooflineMeasurer(), QUIET)
    assert len(start(tmp_path, facts(), QUIET).rows) == 5
    with pytest.raises(InputError, match=r"cpu\.model was X, is Y"):
        start(tmp_path, facts(cpu={"model": "Y", "threads": 2}), QUIET)


def test_interrupt_keeps_every_row(tmp_path: Path) -> None:
    class Interrupted(RooflineMeasurer):
        def row(self, shape: Any) -> Any:
            if len(self.measured) == 9:
                raise KeyboardInterrupt
            return super().row(shape)

    with pytest.raises(KeyboardInterrupt):
        profile(job(50.0), Session.open(tmp_path, QUIET.line), Interrupted(), QUIET)
    assert len(keys(tmp_path)) == 9


def test_diff_tells_machines_and_times_apart(tmp_path: Path) -> None:
    for name, cores, slower in (("a", 2, 1.0), ("b", 4, 1.5)):
        session = start(tmp_path / name, facts(cpu={"model": "X", "threads": cores}), QUIET)
        profile(job(30.0), session, RooflineMeasurer(), QUIET)
        for row in session.rows:
            row["seconds"] *= slower
        (tmp_path / name / ROWS_NAME).write_text("".join(json.dumps(r) + "\n" for r in session.rows))
    found = compare(tmp_path / "a", tmp_path / "b", pytest.fail)
    assert found.facts == {"cpu.threads": (2, 4)}
    assert sum(t.n for t in found.times) == 30
    assert {t.median for t in found.times} == {1.5}
    assert compare(tmp_path / "a", tmp_path / "a", pytest.fail).same
    with pytest.raises(InputError, match="no profile here"):
        compare(tmp_path / "a", tmp_path / "nowhere", pytest.fail)


def test_a_damaged_manifest_is_one_line(tmp_path: Path) -> None:
    (tmp_path / manifest.MANIFEST_NAME).write_text("{")
    with pytest.raises(InputError, match="manifest cannot be read"):
        manifest.read(tmp_path)


def test_progress_is_told_for_every_row(tmp_path: Path) -> None:
    steps: list[float] = []
    reporter = ProgressReporter(pytest.fail, lambda spent, _what: steps.append(spent))
    profile(job(12.0), Session.open(tmp_path, QUIET.line), RooflineMeasurer(), reporter)
    assert steps == [float(i) for i in range(1, 13)]


def test_without_a_folder_an_unfinished_profile_goes_on_and_a_finished_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first = default_folder("local")
    assert not first.exists()
    start(first.with_name("local-20200101-000000"), facts(), QUIET)
    assert default_folder("local").name == "local-20200101-000000"
    manifest.write(first.with_name("local-20200101-000000"), facts(finished_at="then"))
    assert default_folder("local").name > "local-20200101-000000"
    assert default_folder("h100").name.startswith("h100-")


def test_the_reference_is_measured_again_and_again_and_planted_drift_is_told(tmp_path: Path) -> None:
    class Drifting(RooflineMeasurer):
        def row(self, shape: Any) -> Any:
            slower = 1.0 + 0.3 * len(self.measured) / 200
            return {**(row := super().row(shape)), "seconds": row["seconds"] * slower}

    session = Session.open(tmp_path / "a", QUIET.line)
    profile(job(200.0), session, Drifting(), QUIET)
    places = [i for i, r in enumerate(session.rows) if r["family"] == "drift"]
    assert places == [40, 80, 120, 160]
    found = drift.report(session.rows)
    assert found["n"] == 4
    assert found["trend"] == pytest.approx((1 + 0.3 * 160 / 200) / (1 + 0.3 * 40 / 200) - 1, abs=0.001)
    assert found["spread"] > 0.1
    steady = Session.open(tmp_path / "b", QUIET.line)
    profile(job(200.0), steady, RooflineMeasurer(), QUIET)
    assert drift.report(steady.rows)["spread"] == 0.0
    assert drift.report([]) == {}


def test_a_faulted_device_ends_the_profile_and_is_stepped_over(tmp_path: Path) -> None:
    """After an illegal access every call of the process fails: stop at once; the next start leaves that shape out."""

    class Faulting(RooflineMeasurer):
        def row(self, shape: Any) -> Any:
            row = super().row(shape)
            if len(self.measured) < 12:
                return row
            reason = "CUDA error: an illegal memory access was encountered"
            return {k: v for k, v in row.items() if k != "seconds"} | {"status": "error", "reason": reason}

    with pytest.raises(InputError, match=r"12 rows are kept; run the same command to resume.*illegal memory"):
        profile(job(60.0), Session.open(tmp_path, QUIET.line), Faulting(), QUIET)
    culprit = keys(tmp_path)[-1]
    profile(job(60.0), Session.open(tmp_path, QUIET.line), RooflineMeasurer(), QUIET)
    assert keys(tmp_path).count(culprit) == 1
    assert len(keys(tmp_path)) == 60
