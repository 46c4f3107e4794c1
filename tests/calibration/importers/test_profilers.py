"""Traces of profilers: a real one of torch, and exports of Nsight built by the schemas that NVIDIA publishes."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.cli.main import app
from calibration.importers.profilers.nsight_systems import torch_sizes
from calibration.importers.profilers.read import read_profiler_trace
from calibration.importers.profilers.rows import CallTimes, family_rows, operator_table
from calibration.importers.profilers.trace import (
    COPY,
    KERNEL,
    CallsOfThreads,
    DeviceWork,
    ProfiledCall,
    ProfilerTrace,
    dtype_in,
    parents,
)
from calibration.machine_trace.folder import read_trace
from calibration.machine_trace.from_profiler import busy_until, machine_trace_of, values_at, with_profiler
from calibration.machine_trace.readings import quantity
from calibration.machine_trace.sampler import MachineTrace
from calibration.rows.dataset import read_rows
from catalogs.errors import InputError
from catalogs.ui.entry_point import run_command

PID = 7 << 24  # globalPid; a globalTid has the thread in its low 24 bits
TID = PID | 42

MS = 1_000_000  # nanoseconds


def nsight_systems(path: Path) -> Path:
    """Write an export with two products under NVTX ranges, a copy in each direction, and a sampled metric."""
    database = sqlite3.connect(path)
    database.executescript("""
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
            deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
            globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
            deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
            bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
            eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
            text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
        CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER,
            metricName TEXT);
        CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
    """)
    strings = ["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "splitKreduce", "decoder layer", "cudaLaunchKernel"]
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(strings))
    ranges = [
        (0, 50 * MS, 59, 0, None, TID, None, 2),
        (1 * MS, 9 * MS, 59, 0, "aten::linear, seq = 1, op_id = 1, sizes = [[8, 32], [64, 32], []]", TID, None, None),
        (
            2 * MS,
            8 * MS,
            59,
            0,
            "aten::mm, seq = 1, op_id = 2, sizes = [[8, 32], [32, 64]], input_op_ids = [(1,0)]",
            TID,
            None,
            None,
        ),
        (21 * MS, 29 * MS, 59, 0, "aten::mm, op_id = 5, sizes = [[8, 32], [32, 64]]", TID, None, None),
        (3 * MS, 4 * MS, 75, 0, "a name of a thread", TID, None, None),
    ]
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?)", ranges)
    launches = [(3 * MS, 1), (4 * MS, 2), (22 * MS, 3), (30 * MS, 4), (31 * MS, 5)]
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 3, 0)",
        [(at, at + MS // 10, TID, number) for at, number in launches],
    )
    database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, 1, 3, 0)", (25 * MS, 26 * MS, (9 << 24) | 1)
    )  # another process with the same correlation
    kernels = [(10 * MS, 14 * MS, 1, 0), (14 * MS, 15 * MS, 2, 1), (30 * MS, 33 * MS, 3, 0)]
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?)",
        [(start, end, number, PID, name, name) for start, end, number, name in kernels],
    )
    copies = [(40 * MS, 42 * MS, 4, 2_000_000, 1), (42 * MS, 44 * MS, 5, 1_000_000, 2)]
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?)",
        [(start, end, number, PID, size, kind) for start, end, number, size, kind in copies],
    )
    database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (1_700_000_000 * 10**9,))
    kind = (5 << 32) | 0
    database.execute(
        "INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 0, 'GPU', 3, 'SMs Active [Throughput %]')", (kind,)
    )
    database.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, 3, ?)", [(i * MS, kind, i % 100) for i in range(50)])
    database.commit()
    database.close()
    return path


def test_nsight_systems_gives_rows_with_the_sizes_of_nvtx_ranges(tmp_path: Path) -> None:
    trace = read_profiler_trace(nsight_systems(tmp_path / "run.sqlite"))
    assert [call.name for call in trace.calls] == ["aten::linear", "aten::mm", "aten::mm"]
    assert [each.name for each in trace.ranges] == ["decoder layer"]
    assert [each.call for each in trace.work if each.kind == KERNEL] == [1, 1, 2]
    assert trace.began_unix_s == 1_700_000_000.0
    tables, left_out = family_rows(trace)
    assert left_out == {}
    row = tables["gemm"].iloc[0]
    assert len(tables["gemm"]) == 1
    assert (row.m, row.k, row.n, row["dtype"]) == (8.0, 32.0, 64.0, "bf16")
    assert row.seconds == pytest.approx((5e-3 + 3e-3) / 2)  # a call is all of its kernels
    assert row.kernel == "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n, splitKreduce"
    table = operator_table(trace).set_index("operator")
    assert table.loc["aten::linear"].seconds == pytest.approx(5e-3)  # with the kernels of the product inside it
    assert table.loc["aten::linear"].own_seconds == 0.0
    assert table.loc["aten::mm"].own_seconds == pytest.approx(8e-3)


def test_the_signals_of_nsight_systems_are_those_of_its_events(tmp_path: Path) -> None:
    trace = machine_trace_of(read_profiler_trace(nsight_systems(tmp_path / "run.sqlite")))
    signals, step_s = trace.signals(), float(np.diff(trace.at_s)[0])
    assert all(quantity(name).words for name in signals)
    assert signals["gpu.0.kernels"].sum() * step_s == pytest.approx(8e-3)
    assert signals["gpu.0.launches"].sum() * step_s == pytest.approx(3.0)
    assert signals["gpu.0.copied.to_device"].sum() * step_s == pytest.approx(2_000_000)
    assert signals["gpu.0.copied.to_host"].max() == pytest.approx(0.5e9)
    assert 10.0 < np.nanmean(signals["gpu.0.sampled.sms_active_throughput"]) < 40.0
    busy = trace.middle_s[signals["gpu.0.kernels"] > 0.5]
    assert 0.010 <= busy.min() <= 0.011
    assert [phase.name for phase in trace.phases] == ["decoder layer"]


RAW = """some output of the program
==PROF== Connected to process 12
"ID","Process ID","Process Name","Host Name","thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes.sum","gpu__time_duration.sum"
"","","","","","","","","","","","","Mbyte","us"
"0","12","python","gpu1","<default domain>:""aten::mm, op_id = 5, sizes = [[16, 32], [32, 64]]"":none:none:none:none:none:none","ampere_h16816gemm_128x64","1","7","(128, 1, 1)","(4, 1, 1)","0","8.0","1.5","1,250.50"
"1","12","python","gpu1","","vectorized_add","1","7","(128, 1, 1)","(4, 1, 1)","0","8.0","1.5","2.5"
"""  # noqa: E501

DETAILS = """==PROF== Disconnected from process 12
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","a","b","copy(float*)","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","ns","2,848"
"0","12","a","b","copy(float*)","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Memory Throughput","%","14.2"
"1","12","a","b","other(float*)","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","Occupancy","Achieved Occupancy","%","50"
"""  # noqa: E501


def test_nsight_compute_gives_durations_and_no_signals(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(RAW)
    trace = read_profiler_trace(path)
    assert [round(each.duration_s * 1e6, 3) for each in trace.work] == [1250.5, 2.5]
    rows = family_rows(trace)[0]["gemm"]
    assert (rows.m[0], rows.n[0], rows.k[0], rows["dtype"][0]) == (16.0, 64.0, 32.0, "fp16")
    assert rows.seconds[0] == pytest.approx(1250.5e-6)
    assert list(operator_table(trace).operator) == ["aten::mm", ""]
    with pytest.raises(InputError, match="states no times"):
        machine_trace_of(trace)
    path.write_text(DETAILS)
    trace = read_profiler_trace(path)
    assert [(each.name, each.duration_s) for each in trace.work] == [("copy(float*)", pytest.approx(2.848e-6))]
    assert "1 kernels have no duration" in trace.notes


def test_a_real_trace_of_torch_gives_rows(tmp_path: Path, capsys: Any) -> None:
    torch = pytest.importorskip("torch")
    kinds = [torch.profiler.ProfilerActivity.CPU]
    linear, image = torch.nn.Linear(32, 64), torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
    query = torch.randn(2, 4, 16, 8)
    attention = torch.nn.functional.scaled_dot_product_attention
    with torch.inference_mode(), torch.profiler.profile(activities=kinds, record_shapes=True) as profiled:
        for _ in range(3):
            with torch.profiler.record_function("a step of mine"):
                linear(torch.randn(8, 32))
                torch.bmm(torch.randn(5, 8, 16), torch.randn(5, 16, 4))
                image(torch.randn(2, 3, 33, 33))
                attention(query, query, query, is_causal=True)
                attention(query[:, :, :1], query, query)
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    trace = read_profiler_trace(path)
    assert [each.name for each in trace.ranges] == ["a step of mine"] * 3
    tables, _ = family_rows(trace)
    products = {(row.m, row.n, row.k, row.batch, row.shared) for row in tables["matmul"].itertuples()}
    assert products == {(8.0, 64.0, 32.0, 1.0, 1), (8.0, 4.0, 16.0, 5.0, 0)}
    row = tables["convolution"].iloc[0]
    assert (row.batch, row.in_channels, row.out_channels, row.window, row.stride) == (2.0, 3, 8, "3x3", "2x2")
    assert (row.input, row.output, row["dtype"], row.transposed) == ("33x33", "17x17", "fp32", 0)
    row = tables["prefill_attention"].iloc[0]
    assert (row.chunks, row.tokens, row.pairs, row.n_heads, row.head_dim) == (2.0, 32.0, 256.0, 4, 8)
    row = tables["decode_attention"].iloc[0]
    assert (row.sequences, row.context_tokens, row.max_context_tokens) == (2.0, 32.0, 16.0)
    table = operator_table(trace)
    assert table.own_seconds.sum() <= trace.duration_s
    assert (table.own_seconds >= -1e-9).all()
    out, zipped = tmp_path / "out", tmp_path / "trace.json.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert run_command("calibrate", app, ["import", "--profiler", str(zipped), "--out", str(out), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["profiler"] == "torch profiler"
    assert set(read_rows(out / "rows")) == set(tables)
    machine, _ = read_trace(out)
    assert machine.began_unix_s == pytest.approx(path.stat().st_mtime, abs=3600)
    assert float(np.nansum(machine.signal("operators.running") * np.diff(machine.at_s))) > 0


def torch_document(*events: dict[str, Any]) -> dict[str, Any]:
    return {"baseTimeNanoseconds": 1_700_000_000_000_000_000, "traceEvents": list(events)}


def event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def test_kernels_of_torch_belong_to_the_call_with_their_id_or_their_launch(tmp_path: Path) -> None:
    sizes = {"Input Dims": [[8, 32], [32, 64]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    path = tmp_path / "gpu.json"
    document = torch_document(
        event("cpu_op", "aten::mm", 100.0, 50.0, **{"External id": 3, **sizes}),
        event("cpu_op", "aten::mm", 200.0, 50.0, **{"External id": 4, **sizes}),
        event("cuda_runtime", "cudaLaunchKernel", 210.0, 5.0, correlation=9),
        event("kernel", "gemm", 300.0, 7.0, **{"External id": 3, "device": 1, "stream": 7, "correlation": 8}),
        event("kernel", "gemm", 320.0, 9.0, **{"device": 1, "stream": 7, "correlation": 9}),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 330.0, 1.0, **{"device": 1, "bytes": 4096}),
    )
    path.write_text(json.dumps(document))
    trace = read_profiler_trace(path)
    assert [each.call for each in trace.work] == [0, 1, None]
    assert family_rows(trace)[0]["gemm"].seconds[0] == pytest.approx(8e-6)
    assert family_rows(trace)[0]["gemm"]["dtype"][0] == "bf16"
    assert trace.began_unix_s == pytest.approx(1_700_000_000.0001)
    copy = trace.work[-1]
    assert (copy.kind, copy.direction, copy.copied_bytes, copy.device) == (COPY, "to_device", 4096.0, 1)


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("a.json", b"{", "cut short"),
        ("a.json", b'{"traceEvents": 3}', "a list traceEvents"),
        ("a.json", b'{"traceEvents": []}', "no operator and no kernel"),
        ("a.json", json.dumps(torch_document({**event("cpu_op", "a", 1, 1), "ts": "x"})).encode(), "no number ts"),
        ("a.json", json.dumps(torch_document(event("cpu_op", "a", 1, -1))).encode(), "negative duration"),
        ("a.json.gz", b"\x1f\x8bnothing", "cut short"),
        ("a.sqlite", b"SQLite format 3\0" + b"x" * 200, "cannot be read"),
        ("a.csv", b'"ID","Process ID","Kernel Name"\n"0","1","k"\n', "has a duration"),
        ("a.bin", b"\0\1\2", "not a trace of a known profiler"),
        ("a.nsys-rep", b"", "exported by its own tool"),
    ],
)
def test_a_bad_trace_is_refused_in_one_line(name: str, content: bytes, rule: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rule):
        read_profiler_trace(tmp_path / name)
    out = tmp_path / "out"
    assert run_command("calibrate", app, ["import", "--profiler", str(tmp_path / name), "--out", str(out)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not out.exists()


def test_an_export_without_kernels_or_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    database.commit()
    with pytest.raises(InputError, match=r"^this export of Nsight Systems has no kernels"):
        read_profiler_trace(path)
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1)")
    database.commit()
    database.close()
    with pytest.raises(InputError, match="cannot be read"):
        read_profiler_trace(path)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), min_size=1, max_size=12))
def test_work_is_conserved_on_any_grid(spans: list[tuple[int, int]]) -> None:
    pairs = np.array([(start, start + length + 1) for start, length in spans], dtype=np.float64)
    rates = np.arange(1.0, len(pairs) + 1)
    at_s = np.linspace(-1.0, 70.0, 30)
    found = busy_until(pairs, rates, at_s)
    by_hand = [float((rates * np.clip(t - pairs[:, 0], 0.0, np.diff(pairs, axis=1)[:, 0])).sum()) for t in at_s]
    assert found == pytest.approx(by_hand, abs=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_the_innermost_call_is_the_shortest_one_around_a_time(seed: int) -> None:
    draw = np.random.default_rng(seed)

    def nested(start: float, end: float, depth: int) -> list[tuple[float, float]]:
        cuts = np.sort(draw.uniform(start, end, 4))
        inside = [] if depth == 0 else [s for a, b in cuts.reshape(2, 2) for s in nested(float(a), float(b), depth - 1)]
        return [(start, end), *inside]

    calls = [ProfiledCall("a", "t", start, end) for start, end in nested(0.0, 1.0, 3)]
    found, at_s = CallsOfThreads(calls), float(draw.uniform(-0.1, 1.1))
    around = [i for i, call in enumerate(calls) if call.start_s <= at_s <= call.end_s]
    assert found.innermost("t", at_s) == (min(around, key=lambda i: calls[i].duration_s) if around else None)
    assert found.innermost("another", at_s) is None
    for i, parent in enumerate(parents(calls)):
        outer = [
            j
            for j, call in enumerate(calls)
            if j != i and call.start_s <= calls[i].start_s and calls[i].end_s <= call.end_s
        ]
        assert parent == (min(outer, key=lambda j: calls[j].duration_s) if outer else None)


def test_own_times_add_up_to_the_outermost_calls() -> None:
    spans = [(0.0, 10.0), (1.0, 4.0), (2.0, 3.0), (5.0, 9.0), (20.0, 21.0)]
    trace = ProfilerTrace("p", "s", tuple(ProfiledCall("a", "t", *span) for span in spans), ())
    assert CallTimes(trace).own_s == [3.0, 2.0, 1.0, 4.0, 1.0]
    work = (DeviceWork(KERNEL, "k", 0, 30.0, 32.0, 2), DeviceWork(KERNEL, "k", 0, 32.0, 33.0, None))
    on_device = CallTimes(ProfilerTrace("p", "s", trace.calls, work))
    assert on_device.whole_s == [2.0, 2.0, 2.0, 0.0, 0.0]
    assert on_device.own_s == [0.0, 0.0, 2.0, 0.0, 0.0]


def test_a_profiler_is_added_to_a_trace_of_the_machine_by_the_clock(tmp_path: Path) -> None:
    profiled = read_profiler_trace(nsight_systems(tmp_path / "run.sqlite"))
    machine = MachineTrace(
        np.arange(0.0, 0.2, 0.001), {"others.cpu": np.zeros(200)}, began_unix_s=1_700_000_000.0 - 0.1
    )
    found = with_profiler(machine, profiled)
    busy_s = found.middle_s[found.signals()["gpu.0.kernels"] > 0.5]
    assert 0.110 <= busy_s.min() <= 0.112
    assert found.phases[0].start_s == pytest.approx(0.1)
    assert with_profiler(machine, profiled, 0.1).phases[0].start_s == pytest.approx(0.1)
    with pytest.raises(InputError, match="already"):
        with_profiler(found, profiled)
    with pytest.raises(InputError, match="lies outside"):
        with_profiler(machine, profiled, 30.0)
    with pytest.raises(InputError, match="does not state when it began"):
        with_profiler(MachineTrace(machine.at_s, machine.values), profiled)
    assert set(values_at(profiled, machine.at_s)) <= set(found.values)


def test_texts_of_profilers_are_read() -> None:
    assert torch_sizes("aten::cat, op_id = 1, sizes = [[[1, 2], [3]], []]") == ((), ())
    assert torch_sizes("aten::add, seq = 3, sizes = [[4], []], input_op_ids = [(3,0)]") == ((4,), ())
    assert torch_sizes("a range of mine") is None
    named = {
        "c10::BFloat16": "bf16",
        "c10::Half": "fp16",
        "float": "fp32",
        "c10::Float8_e4m3fn": "fp8",
        "signed char": "int8",
        "ampere_sgemm_128x64_nn": "fp32",
        "vectorized": "",
    }
    assert {text: dtype_in(text) for text in named} == named
