"""Measurement of one point on a built model, as the measured part of its row."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from calibration.profile.machine.contention import CONTENDED, others_share, usage
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.energy import Meter
from calibration.profile.machine.timing import NARROW, Timing, median_ci
from calibration.profile.measure import OUT_OF_MEMORY
from calibration.whole_models.generation import Generation, Generator, Stamps
from calibration.whole_models.memory import Peak, model_bytes, peak_on_cpu, peak_on_cuda
from calibration.whole_models.workloads import FEWEST_OUTPUT, SINGLE_RUN_S, Point

FEWEST: Final = 5

MOST_RUNS: Final = 30

ENERGY_LIMIT_S: Final = 20.0

Fields = dict[str, Any]


def row(generator: Generator, point: Point, repeats_s: float, meter: Meter) -> Fields:
    """Return the measured columns of a point, with repeats for `repeats_s` seconds at most.

    A point that fails does not raise: its columns hold status "oom" or "error", and a reason.
    """
    start, before = time.perf_counter(), usage()
    try:
        found = {"status": "ok"} | _measured(generator, point, repeats_s, meter)
    except (RuntimeError, MemoryError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        found = failed(error)
    share = others_share(before, usage(), len(generator.device.cores))
    after = usage()
    return found | {
        "others_share": round(share, 4),
        "contended": bool(share > CONTENDED),
        "page_faults": after.page_faults - before.page_faults,
        "context_switches": after.switches - before.switches,
        "at": round(time.time(), 3),
        "elapsed_s": round(time.perf_counter() - start, 6),
    }


def failed(error: BaseException) -> Fields:
    """Return the status and the reason of an exception."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    out = isinstance(error, MemoryError) or any(w in str(error) for w in OUT_OF_MEMORY)
    return {"status": "oom" if out else "error", "reason": text[:300]}


def _measured(generator: Generator, point: Point, repeats_s: float, meter: Meter) -> Fields:
    """Measure a point: a small run, a run that counts operations and a run for memory precede the timed runs."""
    device = generator.device
    generator.run(generator.prompt(1, min(point.input_tokens, 8)), FEWEST_OUTPUT, Stamps(device))
    flops = generator.counted_flops(point)
    prompt = generator.prompt(point.batch, point.input_tokens)

    def run() -> None:
        generator.run(prompt, point.output_tokens, Stamps(device))

    peak = peak_on_cuda(run, device.torch, meter) if device.is_cuda else peak_on_cpu(run)
    found = _times(_repeats(generator, prompt, point.output_tokens, repeats_s)) | _memory(generator, peak)
    found |= {"flops": flops, "flops_per_s": flops / found["total_s"]} | _energy(meter, run, found["total_s"])
    if device.is_cuda:
        found["device_busy_s"] = _device_busy_s(run, device)
    return found


def _repeats(generator: Generator, prompt: Any, output_tokens: int, limit_s: float) -> list[Generation]:
    start, runs = time.perf_counter(), [generator.timed(prompt, output_tokens)]
    while len(runs) < MOST_RUNS:
        spent, last = time.perf_counter() - start, runs[-1].wall_s
        too_long = spent + last > limit_s and (len(runs) > 1 or last > SINGLE_RUN_S)
        if too_long or (len(runs) >= FEWEST and median_ci([r.device_s for r in runs])[1] <= NARROW):
            break
        runs.append(generator.timed(prompt, output_tokens))
    return runs


def _times(runs: list[Generation]) -> Fields:
    samples = [r.device_s for r in runs]
    total, width = median_ci(samples)
    names = ("prefill_s", "decode_s_per_token", "wall_s", "cpu_s")
    medians = {name: float(np.median([getattr(r, name) for r in runs])) for name in names}
    ci = {"ci_fraction": round(width, 5) if len(runs) > 1 else None}
    return {"total_s": total, "device_s": total, **medians, **ci, "n_samples": len(runs), "samples_s": samples}


def _memory(generator: Generator, peak: Peak) -> Fields:
    weights = model_bytes(generator.model)
    found: Fields = {"model_bytes": weights, "memory_method": peak.method or None}
    if peak.nvml_growth_bytes is not None:
        found |= {"nvml_growth_bytes": peak.nvml_growth_bytes, "nvml_peak_bytes": weights + peak.nvml_growth_bytes}
    if peak.growth_bytes is None:
        return found | {"peak_memory_bytes": None, "memory_reason": peak.unavailable_reason}
    return found | {"memory_growth_bytes": peak.growth_bytes, "peak_memory_bytes": weights + peak.growth_bytes}


def _energy(meter: Meter, run: Any, seconds: float) -> Fields:
    """Return the joules of one generation, or the reason where no counter is readable or the run is too long."""
    watts = meter.watts(Timing(seconds, 0.0, (), replay=run, replay_s=seconds), ENERGY_LIMIT_S)
    if watts is not None:
        return {"watts": round(watts, 2), "energy_j": watts * seconds, **meter.sample()}
    reason = meter.unavailable_reason or f"no power: one run takes longer than {ENERGY_LIMIT_S:.0f} s"
    return {"watts": None, "energy_j": None, "power_reason": reason, **meter.sample()}


def _device_busy_s(run: Any, device: ProfiledDevice) -> float | None:
    """Return the seconds in which the GPU ran kernels during one generation, or None where torch cannot trace it."""
    torch = device.torch
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as watched:
            run()
            torch.cuda.synchronize()
        events = watched.key_averages()
    except RuntimeError:
        return None
    busy = sum(getattr(e, "self_device_time_total", getattr(e, "self_cuda_time_total", 0.0)) for e in events)
    return float(busy) * 1e-6 or None
