"""`calibrate profile` and `calibrate run` on the machine at hand, from options to files."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from calibration.profile.kernels import collective, drift_reference, machine_rates
from calibration.profile.machine.counters import open_counters, since, traffic
from calibration.profile.machine.device import ProfiledDevice, open_device
from calibration.profile.machine.energy import open_meter
from calibration.profile.measure import ShapeTimer
from calibration.profile.peaks import measured
from calibration.profile.run import ProfileJob, ProgressReporter, profile, start
from calibration.profile.session import manifest
from calibration.profile.session.session import Session
from calibration.profile.session.shape import Shape
from calibration.profile.shapes.queue import candidates, once, own_shapes
from calibration.profile.shapes.serving import extra_shapes
from calibration.profile.shapes.size_limits import CPU, CUDA
from calibration.profile.shapes.sizes import catalog_sizes, own_sizes
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.specs import Accelerator
from catalogs.models.catalog import load_model

SHARE_OF_BUDGET: Final = 1 / 500  # that one shape's repeats may take

LIMIT_S: Final = (0.03, 2.0)

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What the command line says."""

    hardware: str
    budget_s: float
    out: Path | None = None
    device: str | None = None
    threads: int | None = None
    seed: int = 0
    models: tuple[str, ...] = ()  # whose shapes come first
    dtype: str | None = None  # these models are served in; what the device computes well where not given


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A finished profile."""

    folder: Path
    session: Session
    facts: manifest.Manifest
    accelerator: Accelerator  # with measured peaks where the catalog does not know them
    counts: dict[str, Any]
    device: ProfiledDevice


def budget_s(text: str) -> float:
    """Seconds of "5m", "300s", "1h" or "90". Raises InputError for anything else, or nothing."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text.lower())
    if found is None or float(found[1]) <= 0:
        raise InputError("a budget is a time", text, "5m")
    return float(found[1]) * _UNITS[found[2]]


def this_machine(text: str, device: ProfiledDevice) -> Accelerator:
    """The accelerator profiled. Raises InputError where `text` names other hardware than this machine's."""
    from catalogs.hardware.local import cpu_hardware, local_hardware, read_cpu

    here = local_hardware().accelerator
    if device.is_cuda and here.kind == "cpu":
        raise InputError("the GPU cannot be named without its driver's library", "pynvml", "pip install nvidia-ml-py")
    if not device.is_cuda and here.kind != "cpu":  # the CPU of a machine with a GPU
        raise InputError("--device cpu on a machine with a GPU is not supported", here.name, "no --device")
    if text.strip().lower() not in ("local", here.name):
        named = parse_hardware(text).accelerator
        if named.name != here.name:
            raise InputError("only this machine can be profiled, it is not", named.name, f"local ({here.full_name})")
    return cpu_hardware(read_cpu()).accelerator if here.kind == "cpu" else here


def run_profile(options: ProfileOptions) -> ProfileResult:
    """Profile this machine into a folder, or go on with an unfinished profile of it."""
    counters, before = open_counters(), traffic()  # before torch starts its threads
    device, accelerator, job = prepare(options)
    facts = manifest.describe(accelerator.name, device, options.budget_s, options.seed)
    facts |= {"models": list(options.models), "activation_dtype": device.activation}
    folder = options.out or default_folder(accelerator.name)
    limit = limit_s(options.budget_s)
    meter = open_meter(device)
    with progress(options.budget_s) as told:
        session = start(folder, facts, told)
        for why_not in (meter.why_not, counters.why_not, collective.why_not(device, options.budget_s)):
            if why_not:
                told.line(why_not)
        try:
            counts = profile(job, session, ShapeTimer(device, meter, limit, counters=counters), told)
        except KeyboardInterrupt:
            told.line(f"interrupted: {len(session.rows)} rows are kept; the same command with --out {folder} goes on")
            raise
    drifted = drift_reference.report(session.rows)
    told.line(drift_reference.line(drifted))
    ended = {"finished_at": manifest.now(), "counts": counts, "power": meter.why_not, "drift": drifted}
    ended["machine_traffic"] = since(before, traffic())
    facts = (manifest.read(folder) or facts) | ended
    manifest.write(folder, facts)
    unit = accelerator if accelerator.name != "local" else measured(accelerator, session.rows, device.cache_bytes)
    return ProfileResult(folder, session, facts, unit, counts, device)


def limit_s(budget: float) -> float:
    """Seconds one shape's repeats may take."""
    return min(max(budget * SHARE_OF_BUDGET, LIMIT_S[0]), LIMIT_S[1])


def prepare(options: ProfileOptions) -> tuple[ProfiledDevice, Accelerator, ProfileJob]:
    """What would be measured, on what. Raises InputError for options that do not fit this machine."""
    models = [load_model(m) for m in options.models]
    device = open_device(options.device, options.threads)
    if options.dtype is not None and options.dtype not in device.dtypes:
        raise InputError("this device does not multiply in that dtype", options.dtype, ", ".join(device.dtypes))
    if options.dtype == "fp32":
        device = replace(device, activation="fp32")
    accelerator = this_machine(options.hardware, device)
    reach = CUDA if device.is_cuda else CPU
    own: list[Shape] = []
    if models:
        served = (options.dtype,) if options.dtype else _served(device)
        own = own_shapes(own_sizes(models, device.memory_bytes, reach.splits), reach, served, options.seed)
    sizes = catalog_sizes(device.memory_bytes, reach.splits, small=not device.is_cuda)
    extra = extra_shapes(sizes, reach, device)
    shapes = once([*own, *candidates(sizes, reach, device.dtypes, options.seed), *extra])
    ranks = collective.shapes(device) if collective.why_not(device, options.budget_s) is None else []
    found = ProfileJob(
        accelerator,
        machine_rates.shapes(device),
        shapes,
        options.budget_s,
        device.cache_bytes,
        device.dtypes[0],
        (lambda: collective.rows(ranks, device)) if ranks else None,
        frozenset(s.key for s in own),
    )
    return device, accelerator, found


def _served(device: ProfiledDevice) -> tuple[str, ...]:
    """The dtypes a model is usually served in here: on a GPU not fp32, int8 nowhere."""
    usual = ("bf16", "fp8") if device.is_cuda else ("bf16", "fp32")
    return tuple(d for d in device.dtypes if d in usual) or device.dtypes[:1]


def default_folder(name: str) -> Path:
    """The newest unfinished profile of this hardware in the user's data, else a new one named by the time."""
    from calibration.bundles.bundle import user_folder

    root = user_folder().parent / "profiles"
    for folder in sorted(root.glob(f"{name}-*"), reverse=True):
        found = manifest.read(folder)
        if found is not None and found.get("finished_at") is None:
            return folder
    return root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def fit_and_install(done: ProfileResult) -> tuple[Path, Path | None, Path | None]:
    """(bundle.json, installed folder, file of measured peaks): what plan and simulate then use.

    Nothing is installed, and both are None, where a disturbed profile would replace an undisturbed one.
    """
    from calibration.profile.fitted import fit_profile, install, worse_than_installed
    from catalogs.hardware import local as measured_peaks

    bundle = fit_profile(done.session.rows, done.facts, done.accelerator, done.folder)
    if worse_than_installed(bundle, done.accelerator.name):
        return bundle, None, None
    peaks = None
    if done.accelerator.name == "local":
        source = f"calibrate profile, torch {done.facts['libraries']['torch']}"
        found = measured_peaks.MeasuredPeaks.of(done.accelerator, done.facts["started_at"][:10], source)
        peaks = measured_peaks.save_measured_peaks(found)
    return bundle, install(bundle, done.accelerator.name), peaks


@contextmanager
def progress(total_s: float) -> Iterator[ProgressReporter]:
    """A bar on stderr; lines above it. Without a terminal only the lines, and one for every fifth of the budget."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("profiling"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total_s)
        said = [0]

        def line(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        def step(spent_s: float, what: str) -> None:
            bar.update(task, completed=min(spent_s, total_s), description=what)
            fifth = int(5 * spent_s / total_s)
            if not console.is_terminal and fifth > said[0]:
                said[0] = fifth
                line(f"profiled {min(fifth, 5) * 20} % of the budget")

        yield ProgressReporter(line, step)
