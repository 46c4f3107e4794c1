"""Tests of what a profile measures in addition to operators: host, pages, ranks, counters, sensors of a GPU."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from calibration.profile.dry_run import machine_lines, plan, plan_lines
from calibration.profile.machine import counters
from calibration.profile.machine.energy import Meter
from calibration.profile.session.shape import CHECKS, FIT, Shape
from calibration.profile.shapes.size_limits import CPU, CUDA
from tests.calibration.roofline_measurer import UNIT, job


def test_disks_are_counted_once_and_the_loopback_never(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "diskstats").write_text(
        "8 0 sda 1 0 100 0 1 0 10 0 0 0 0\n8 1 sda1 1 0 90 0 1 0 9 0 0 0 0\n7 0 loop0 1 0 5000 0 1 0 0 0 0 0 0\n"
    )
    (tmp_path / "net" / "dev").write_text(
        "head\nhead\n    lo: 7 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0\n  eth0: 11 0 0 0 0 0 0 0 13 0 0 0 0 0 0 0\n"
    )
    found = counters.traffic(tmp_path)
    assert found == {
        "disk_read_bytes": 51200,
        "disk_written_bytes": 5120,
        "network_received_bytes": 11,
        "network_sent_bytes": 13,
    }
    assert counters.since({"a": 1}, {"a": 4, "b": 9}) == {"a": 3}
    assert counters.traffic(tmp_path / "none") == {}


def test_counters_count_or_say_why_not() -> None:
    opened = counters.open_counters()
    if opened.files:
        before = opened.read()
        sum(i * i for i in range(100_000))
        assert opened.read()["instructions"] - before["instructions"] > 100_000
    else:
        assert opened.unavailable_reason.startswith("no cache misses")
        assert opened.read() == {}


def test_a_device_is_asked_while_it_works_and_an_idle_sample_does_not_dilute_it() -> None:
    busy = [True]
    meter = Meter(None, lambda: {"device_power_w": 700.0 if busy[0] else 100.0}, polls=True)
    with meter.sampling() as watch:
        time.sleep(0.5)
        busy[0] = False
    assert len(watch.samples) > 2
    assert watch.mean["device_power_w"] > 100.0 + 600.0 * (1 - 1.5 / (len(watch.samples) - 1))  # one late poll at most
    quiet = Meter(None, lambda: {"clock_mhz": 5.0})
    with quiet.sampling() as watch:
        pass
    assert watch.mean == {"clock_mhz": 5.0}
    assert len(watch.samples) == 1


def test_a_plan_names_every_queue_and_gives_all_of_the_budget() -> None:
    planned = job(300.0)
    entries = plan(planned, 0.6)
    assert sum(e["fit"] + e["check"] for e in entries) == len(planned.shapes)
    assert sum(e["budget_s"] for e in entries) == pytest.approx(300.0, abs=1.0)
    assert all(e["all_s"] > 0 for e in entries)
    lines = plan_lines(entries, planned)
    assert len(lines) == len(entries) + 2
    assert all(e["queue"] in "\n".join(lines) for e in entries)


def test_what_could_not_be_measured_is_said_beside_what_was() -> None:
    lines = machine_lines(
        [
            {
                "family": "pages",
                "kind": "host to host, 4 KB pages",
                "message_bytes": 2**20,
                "seconds": 1e-4,
                "status": "ok",
            },
            {"family": "pages", "kind": "1 GB", "message_bytes": 2**26, "status": "skipped", "reason": "none granted"},
            {"family": "host", "kind": "tokenise", "tokens": 32, "seconds": 3e-5, "status": "ok"},
            {"family": "gemm", "status": "ok", "seconds": 1.0},
        ]
    )
    assert lines == [
        "  host to host, 4 KB pages, 1 MiB: 100 µs, 10.5 GB/s",
        "  1 GB, 64 MiB: skipped, none granted",
        "  tokenise, 32 tokens: 30 µs",
    ]


torch = pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")

from calibration.profile.kernels import collective, host  # noqa: E402
from calibration.profile.kernels.attention import linear as scan  # noqa: E402
from calibration.profile.kernels.attention import prefill  # noqa: E402
from calibration.profile.kernels.gemm import work as gemm  # noqa: E402
from calibration.profile.machine.device import ProfiledDevice, open_device  # noqa: E402
from calibration.profile.measure import ShapeTimer  # noqa: E402
from calibration.profile.shapes.queue import extra_shapes  # noqa: E402
from calibration.profile.shapes.sizes import catalog_sizes  # noqa: E402
from calibration.profile.torch_profiler import trace  # noqa: E402


@pytest.fixture(scope="module")
def device() -> ProfiledDevice:
    return open_device("cpu")


def cells(call: object) -> dict[str, object]:
    code, closure = call.__code__, call.__closure__  # type: ignore[attr-defined]
    return dict(zip(code.co_freevars, (c.cell_contents for c in closure), strict=True))


def test_host_and_pages_are_measured_or_skipped_with_a_reason(device: ProfiledDevice) -> None:
    timer = ShapeTimer(device, Meter(None, dict), 0.02)
    for shape in [*host.shapes(), *host.page_shapes(device)]:
        if shape.family == "pages" and shape["message_bytes"] > 2**20:
            continue
        row = timer.row(shape)
        assert row["status"] in ("ok", "skipped"), row
        assert (row["seconds"] > 0) if row["status"] == "ok" else row["reason"]


def test_tokens_survive_the_way_there_and_back() -> None:
    pytest.importorskip("tokenizers", reason="transformers is not installed (pip install '.[calibration]')")
    tokenizer, text = host._tokenizer()
    ids = tokenizer.encode(text).ids
    assert len(ids) > 600
    assert tokenizer.decode(ids).strip() == text  # a byte-level BPE puts a space before the first word


def test_ranks_of_this_machine_reduce_and_gather(device: ProfiledDevice) -> None:
    assert "not measured with a budget of less than" in str(collective.unavailable_reason(device, 5.0))
    if reason := collective.unavailable_reason(device, 300.0):
        pytest.skip(f"hardware: {reason}" if "only one" in reason else reason)
    some = [s for s in collective.shapes(device) if s["message_bytes"] in (1024, 2**20)]
    least_s: dict[tuple[object, object], float] = {}
    for _ in range(6):  # another process may disturb one measurement, which only makes it longer
        rows = collective.rows(some, device)
        assert [r["status"] for r in rows] == ["ok"] * 4, rows
        assert all(r["ranks"] == 2 and r["role"] == FIT for r in rows)
        for row in rows:
            key = row["kind"], row["message_bytes"]
            least_s[key] = min(float(row["seconds"]), least_s.get(key, math.inf))
        if least_s["all_reduce", 2**20] > least_s["all_reduce", 1024]:
            break
    assert least_s["all_reduce", 2**20] > least_s["all_reduce", 1024]


def test_ranks_that_never_come_back_are_ended_and_said(device: ProfiledDevice) -> None:
    rows = collective.rows(collective.shapes(device)[:1], device, limit_s=0.2)
    assert rows[0]["status"] == "error"
    assert "did not finish" in rows[0]["reason"]


def test_int8_products_are_products(device: ProfiledDevice) -> None:
    if "int8" not in device.dtypes:
        pytest.skip("hardware: this processor has no int8 products")
    call = gemm(Shape.of("gemm", m=20, n=64, k=128, dtype="int8"), device).calls[0]
    held = cells(call)
    want = held["x"].float() @ (held["w"].float() / 256.0)  # type: ignore[attr-defined]
    got = call().float()
    assert float((got - want).norm() / want.norm()) < 0.02


def test_a_chunked_scan_is_the_scan_token_by_token(device: ProfiledDevice) -> None:
    sized = {"n_heads": 2, "key_head_dim": 16, "value_head_dim": 8}
    shape = Shape.of("linear_attention", tokens=128, sequences=1, stage="prefill", **sized)
    call = scan(shape, device).calls[0]
    held = cells(call)
    q, k, v = (held[n].float().view(2, 128, -1) for n in "qkv")  # type: ignore[attr-defined]
    state, want = torch.zeros(2, 16, 8), []
    for t in range(128):
        state = state + k[:, t, :, None] * v[:, t, None, :]
        want.append(torch.einsum("hk,hkv->hv", q[:, t], state))
    got = call().float().view(2, 128, 8)
    assert torch.allclose(got, torch.stack(want, 1), atol=0.02)


def test_a_window_hides_what_lies_before_it(device: ProfiledDevice) -> None:
    head = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 16, "kv_dtype": "fp32", "window_tokens": 4}
    shape = Shape.of("prefill_attention", CHECKS, chunks=1, tokens=12, pairs=40.0, **head)
    mask = cells(prefill(shape, device).calls[0])["mask"]
    assert [int(n) for n in mask.sum(1)] == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4]  # type: ignore[attr-defined]


def test_a_trace_names_the_kernels_behind_a_product(device: ProfiledDevice) -> None:
    found = trace(Shape.of("gemm", m=64, n=256, k=256, dtype="fp32"), device)
    assert found
    assert any("linear" in name for name, *_ in found)
    assert [s for _, _, s, _ in found] == sorted((s for _, _, s, _ in found), reverse=True)


def test_scans_are_fitted_where_torch_is_what_runs_and_windows_only_checked(device: ProfiledDevice) -> None:
    found = extra_shapes(catalog_sizes(16e9, (1,)), CPU, device)
    assert {s.role for s in found if s.family == "linear_attention"} == {FIT}
    assert {s.role for s in found if s.family == "prefill_attention"} == {CHECKS}
    assert all(s.roofline_s(UNIT) > 0 for s in found if s.operator is not None)
    assert CUDA.kv_dtypes == ("bf16",)
