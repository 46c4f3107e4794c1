"""The whole of it with torch on a CPU, seconds long: rows, gate, fit, bundle, installation, use."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")

from calibration.bundles.bundle import load_bundle  # noqa: E402
from calibration.cli.main import app  # noqa: E402
from calibration.operators.operators import Gemm  # noqa: E402
from calibration.profile import local_run  # noqa: E402
from calibration.profile.kernels.attention import prefill  # noqa: E402
from calibration.profile.kernels.gemm import work as gemm  # noqa: E402
from calibration.profile.kernels.inputs import random  # noqa: E402
from calibration.profile.local_run import ProfileOptions  # noqa: E402
from calibration.profile.machine.device import ProfiledDevice, open_device  # noqa: E402
from calibration.profile.machine.energy import Meter  # noqa: E402
from calibration.profile.measure import ShapeTimer  # noqa: E402
from calibration.profile.run import ProfileJob  # noqa: E402
from calibration.profile.session.session import Session  # noqa: E402
from calibration.profile.session.shape import Shape  # noqa: E402
from calibration.profile.shapes.queue import candidates  # noqa: E402
from calibration.profile.shapes.size_limits import CPU  # noqa: E402
from calibration.profile.shapes.sizes import catalog_sizes  # noqa: E402
from catalogs.errors import InputError  # noqa: E402
from catalogs.hardware.catalog import parse_hardware  # noqa: E402
from catalogs.hardware.specs import Accelerator  # noqa: E402
from catalogs.units import MIB  # noqa: E402

RUN = CliRunner()

#: Of the last level: inputs are rotated over twice as much, which takes gigabytes on a large server.
SMALL_CACHE = 1.0 * MIB


@pytest.fixture(scope="module")
def device() -> ProfiledDevice:
    return replace(open_device("cpu"), cache_bytes=SMALL_CACHE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def timer(device: ProfiledDevice) -> ShapeTimer:
    return ShapeTimer(device, Meter(None, dict), 0.02)


def test_every_family_measures_its_smallest_shape(device: ProfiledDevice) -> None:
    smallest: dict[str, Shape] = {}
    unit = parse_hardware("epyc-9654").accelerator
    for shape in candidates(catalog_sizes(4e9, (1,)), CPU, ("bf16", "fp32")):
        label = f"{shape.queue} {dict(shape.fields).get('kind', '')}"
        if label not in smallest or shape.bytes(unit) < smallest[label].bytes(unit):
            smallest[label] = shape
    assert len(smallest) >= 12
    for label, shape in smallest.items():
        if shape.family == "moe":
            continue  # the smallest expert layer of the catalog is a gigabyte
        row = timer(device).row(shape)
        assert row["status"] == "ok", (label, row)
        assert row["seconds"] > 0
        assert row["n_samples"] == len(row["samples_us"]) >= 2


def test_products_are_products(device: ProfiledDevice) -> None:
    for dtype in ("bf16", "fp32"):
        call = gemm(Shape.of("gemm", m=3, n=96, k=64, dtype=dtype), device).calls[0]
        cells = dict(zip(call.__code__.co_freevars, (c.cell_contents for c in call.__closure__), strict=True))
        assert call().shape == (3, 96)
        weights = cells["w"].to_dense() if cells["w"].layout != torch.strided else cells["w"]
        want = cells["x"].float() @ weights.float().T
        assert torch.allclose(call().float(), want, atol=0.05)


def test_a_small_expert_layer(device: ProfiledDevice) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "n_experts": 8, "experts_per_token": 2, "expert_ranks": 1}
    row = timer(device).row(Shape.of("moe", tokens=16, dtype="bf16", **sizes))
    assert row["status"] == "ok", row


def test_chunk_after_context_is_causal_attention(device: ProfiledDevice) -> None:
    """The two merged calls give what one masked call gives."""
    chunks, q, context, heads, kv_heads, size = 1, 5, 7, 4, 2, 16
    fields = {"n_heads": heads, "n_kv_heads": kv_heads, "head_dim": size, "kv_dtype": "bf16", "window_tokens": 0}
    shape = Shape.of("prefill_attention", chunks=chunks, tokens=q, pairs=q * (context + q / 2), **fields)
    call = prefill(shape, device).calls[0]
    cells = dict(zip(call.__code__.co_freevars, (c.cell_contents for c in call.__closure__), strict=True))
    keys, values = (torch.cat([cells["earlier"][i], cells["own"][i]], dim=2).float() for i in (0, 1))
    mask = torch.ones(q, context + q, dtype=torch.bool).tril(context)
    want = torch.nn.functional.scaled_dot_product_attention(cells["q"].float(), keys, values, attn_mask=mask)
    assert torch.allclose(call().float(), want, atol=0.02)


def test_a_shape_too_large_is_a_row_that_says_so(device: ProfiledDevice) -> None:
    row = timer(device).row(Shape.of("gemm", m=1, n=2**22, k=2**22, dtype="bf16"))
    assert row["status"] == "oom"
    assert "GB" in row["reason"]


class SmallShapes:
    """Lets a profile of this machine end when `n` small shapes of every queue are measured.

    Drawing, packing and rotating the inputs of the output layer of a large model alone takes gigabytes and seconds.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.prepare = local_run.prepare

    def __call__(self, options: ProfileOptions) -> tuple[ProfiledDevice, Accelerator, ProfileJob]:
        device, unit, job = self.prepare(options)
        by_queue: dict[str, list[Shape]] = {}
        for shape in sorted(job.shapes, key=lambda shape: shape.bytes(unit)):
            if shape.family != "moe":  # the smallest expert layer of the catalog is a gigabyte
                by_queue.setdefault(shape.queue, []).append(shape)
        few = [shape for queue in by_queue.values() for shape in queue[: self.n]]
        return replace(device, cache_bytes=SMALL_CACHE), unit, replace(job, shapes=few, cache_bytes=SMALL_CACHE)


def test_run_installs_a_calibration_that_plan_finds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = SmallShapes(3)
    monkeypatch.setattr(local_run, "prepare", shapes)
    monkeypatch.setattr(local_run, "LIMIT_S", (0.02, 0.02))
    before = parse_hardware("local").accelerator
    done = RUN.invoke(
        app, ["run", "--budget", "50s", "--out", str(home / "p"), "--json", str(home / "o.json"), "--allow-contended"]
    )
    assert done.exit_code == 0, done.output
    answer = json.loads((home / "o.json").read_text())
    assert answer["counts"]["ok"] > 10
    unit = parse_hardware("local").accelerator
    assert unit.memory_bandwidth_bytes_per_s == pytest.approx(answer["memory_bandwidth_bytes_per_s"])
    assert unit.memory_bandwidth_bytes_per_s != before.memory_bandwidth_bytes_per_s
    bundle = load_bundle(unit)
    assert "gemm" in bundle.models
    cost = bundle.cost(Gemm(16, 4096, 4096, "bf16"))
    assert cost.seconds > 0
    rows = len(Session.open(home / "p", pytest.fail).rows)
    shapes.n = 4
    again = RUN.invoke(app, ["profile", "--budget", "50s", "--out", str(home / "p")])
    assert again.exit_code == 0, again.output
    after = [r["key"] for r in Session.open(home / "p", pytest.fail).rows]
    assert len(after) == len(set(after)) > rows


LIMITED = """
import resource, sys
from calibration.cli.main import main
from calibration.profile.machine import device
device.last_level_cache_bytes = lambda: 1.0 * 2**20
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
main(["profile", "--budget", "20s", "--out", sys.argv[1]])
"""


def test_a_disk_that_fills_while_measuring_is_one_line_and_keeps_the_rows(home: Path) -> None:
    """No file may grow past 3,000 bytes, as on a full disk; afterwards the same command goes on."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(home / "p")], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "cannot write a row (File too large)" in last
    assert "rows are kept" in last
    assert "Traceback" not in done.stderr
    session = Session.open(home / "p", pytest.fail)
    assert len(session.rows) >= 2
    assert (home / "p" / "rows.jsonl").stat().st_size <= 3000


def test_keys_and_values_of_one_call_are_not_the_same_memory(device: ProfiledDevice) -> None:
    """Otherwise a kernel that reads both would find the second in its cache."""
    n = 1 << 26  # more than the pool starts with
    keys, values = random(device, (n,)), random(device, (n,))
    distance = abs(keys.data_ptr() - values.data_ptr())
    assert distance >= n * keys.element_size() / 2
    device.pool.clear()


def test_a_gpu_that_is_not_there_is_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("hardware: this machine has a GPU")
    with pytest.raises(InputError, match="torch cannot use one") as caught:
        open_device("cuda")
    assert "\n" not in str(caught.value)


def test_wrong_hardware_and_device_are_one_line(home: Path) -> None:
    from calibration.cli.main import main

    for args in (["run", "--hw", "h100"], ["profile", "--device", "tpu"], ["profile", "--threads", "9999"]):
        with pytest.raises(SystemExit) as stopped:
            main([*args, "--budget", "2s", "--out", str(home / "q")])
        assert stopped.value.code == 2
