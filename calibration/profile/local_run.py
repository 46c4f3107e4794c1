"""The run behind `calibrate profile` and `calibrate run` on this machine, from options to files."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from calibration.bundles.bundle import user_folder
from calibration.profile.kernels import collective, drift_reference, generate, host, machine_rates
from calibration.profile.machine.allocator import keep_freed_memory
from calibration.profile.machine.counters import open_counters, since, traffic
from calibration.profile.machine.device import ProfiledDevice, open_device
from calibration.profile.machine.energy import open_meter
from calibration.profile.measure import ShapeTimer
from calibration.profile.peaks import host_copies, measured
from calibration.profile.run import ProfileJob, ProgressReporter, profile, start
from calibration.profile.session import manifest
from calibration.profile.session.session import Session
from calibration.profile.shapes.network_shapes import network_grid, user_network_shapes
from calibration.profile.shapes.queue import candidates, deduplicated, extra_shapes, user_model_shapes
from calibration.profile.shapes.size_limits import CPU, CUDA
from calibration.profile.shapes.sizes import catalog_sizes, user_model_sizes
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.hardware.local import MeasuredPeaks, cpu_hardware, local_hardware, read_cpu
from catalogs.hardware.specs import Accelerator
from catalogs.models.catalog import load_model
from catalogs.models.spec import ModelSpec
from catalogs.networks.files import list_networks, load_network
from catalogs.networks.network import NeuralNetwork
from catalogs.ui.crash_report import show_on_stderr
from catalogs.ui.progress import PlainLines
from catalogs.ui.words import percent

#: Share of the budget that the repeats of one shape may take. A judgement: a budget of half an hour has hundreds of
#: shapes.
SHARE_OF_BUDGET: Final = 1 / 500

LIMIT_S: Final = (0.03, 2.0)  # bounds of the time that the repeats of one shape may take

#: Number formats in which networks are measured.
NETWORK_DTYPES: Final = ("fp32", "bf16", "fp16")

NETWORK_SUFFIX: Final = ".yaml"  # of a network file; a language model is a folder

#: Seconds of each unit of a budget; a number without a unit is in seconds.
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The options of a profile, as given on the command line."""

    hardware: str
    budget_s: float
    out: Path | None = None
    device: str | None = None
    threads: int | None = None
    seed: int = 0
    models: tuple[str, ...] = ()  # The user's models. Their shapes are measured first.
    dtype: str | None = None  # the dtype in which `models` are served; None means the dtypes usual on the device


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """The rows, facts and counts of a finished profile."""

    folder: Path
    session: Session
    facts: manifest.Manifest
    accelerator: Accelerator  # it has measured peaks where the catalog does not know them
    counts: dict[str, Any]
    device: ProfiledDevice


def budget_s(text: str) -> float:
    """Return the seconds of a time such as "5m", "300s", "1h" or "90".

    Raises:
        InputError: If the text is no positive time.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text.lower())
    if found is None or float(found[1]) <= 0:
        raise InputError("a budget is a positive time", text, "5m")
    return float(found[1]) * _UNITS[found[2]]


def this_machine(text: str, device: ProfiledDevice) -> Accelerator:
    """Return the accelerator of this machine, which is to be profiled.

    Raises:
        InputError: If `text` names other hardware than this machine's, or the GPU cannot be identified.
    """
    here = local_hardware().accelerator
    if device.is_cuda and here.kind == "cpu":
        raise InputError("the GPU cannot be identified without NVML", "pynvml", hint="pip install nvidia-ml-py")
    if not device.is_cuda and here.kind != "cpu":  # this is the CPU of a machine with a GPU
        raise InputError("--device cpu on a machine with a GPU is not supported", here.name, hint="leave out --device")
    if text.strip().lower() not in ("local", here.name) and parse_hardware(text).accelerator.name != here.name:
        raise InputError("only the hardware of this machine can be profiled", text, f"local ({here.full_name})")
    return cpu_hardware(read_cpu()).accelerator if here.kind == "cpu" else here


def run_profile(options: ProfileOptions, reporter: ProgressReporter | None = None) -> ProfileResult:
    """Profile this machine into a folder, or resume an unfinished profile of it.

    Args:
        options: The options.
        reporter: Shows the progress; None shows it on stderr.

    Raises:
        InputError: If the options do not fit this machine, or the folder cannot be used.
    """
    counters, before = open_counters(), traffic()  # this precedes the start of torch's threads
    device, accelerator, job = prepare(options)
    if not device.is_cuda:
        keep_freed_memory()
    facts = manifest.describe(accelerator.name, device, options.budget_s, options.seed)
    facts |= {"models": list(options.models), "activation_dtype": device.activation}
    folder = options.out or default_folder(accelerator.name)
    meter = open_meter(device)
    timer = ShapeTimer(device, meter, limit_s(options.budget_s), counters=counters)
    no_collectives = collective.unavailable_reason(device, options.budget_s)
    with progress(options.budget_s) if reporter is None else nullcontext(reporter) as reporter:
        session = start(folder, facts, reporter)
        for reason in filter(None, (meter.unavailable_reason, counters.unavailable_reason, no_collectives)):
            reporter.line(reason)
        try:
            counts = profile(job, session, timer, reporter)
        except KeyboardInterrupt:
            kept = f"{len(session.rows)} rows are kept"
            reporter.line(f"{kept}; run the same command with --out {folder} to resume")
            raise
    drifted = drift_reference.report(session.rows)
    reporter.line(drift_reference.line(drifted))
    facts = manifest.read(folder) or facts
    facts |= {"finished_at": manifest.now(), "counts": counts, "power": meter.unavailable_reason, "drift": drifted}
    facts |= {"machine_traffic": since(before, traffic())}
    manifest.write(folder, facts)
    unit = accelerator if accelerator.name != "local" else measured(accelerator, session.rows, device.cache_bytes)
    return ProfileResult(folder, session, facts, unit, counts, device)


def limit_s(budget: float) -> float:
    """Return the seconds that the repeats of one shape may take."""
    return min(max(budget * SHARE_OF_BUDGET, LIMIT_S[0]), LIMIT_S[1])


def prepare(options: ProfileOptions) -> tuple[ProfiledDevice, Accelerator, ProfileJob]:
    """Return the device, its accelerator and the job that a profile with these options would run.

    Raises:
        InputError: If the options do not fit this machine.
    """
    models, networks = split_models(options.models)
    device = open_device(options.device, options.threads)
    if options.dtype is not None and options.dtype not in device.dtypes:
        raise InputError("this device has no matrix products in that dtype", options.dtype, ", ".join(device.dtypes))
    if options.dtype == "fp32":
        device = replace(device, activation="fp32")
    accelerator = this_machine(options.hardware, device)
    limits = CUDA if device.is_cuda else CPU
    # By default the dtypes in which models are usually served on the device: never int8, and fp32 only on a CPU.
    usual = (options.dtype,) if options.dtype else ("bf16", "fp8" if device.is_cuda else "fp32")
    served = [d for d in device.dtypes if d in usual] or device.dtypes[:1]
    own = [
        shape
        for group, is_plain in _by_engine(models, device)
        for shape in user_model_shapes(
            user_model_sizes(group, device.memory_bytes, limits.splits), limits, served, options.seed, is_plain
        )
    ]
    architectures = {m.architecture for group, is_plain in _by_engine(models, device) if is_plain for m in group}
    own += [shape for name in sorted(architectures) for shape in generate.shapes(name)]
    # A network runs in the dtype of its modules: torch's default on a CPU, 16 bits on a GPU.
    computed = options.dtype if options.dtype in NETWORK_DTYPES else "bf16" if device.is_cuda else "fp32"
    of_networks = user_network_shapes(networks, limits, (computed,), accelerator, options.seed)
    own += of_networks.major
    sizes = catalog_sizes(device.memory_bytes, limits.splits, small=not device.is_cuda)
    usual_shapes = candidates(sizes, limits, device.dtypes, options.seed)
    grid = network_grid(limits, computed, options.seed)
    shapes = deduplicated([*own, *of_networks.minor, *usual_shapes, *grid, *extra_shapes(sizes, limits, device)])
    machine = machine_rates.shapes(device) + host.page_shapes(device)
    ranks = collective.shapes(device) if collective.unavailable_reason(device, options.budget_s) is None else []
    at_once = partial(collective.rows, ranks, device) if ranks else None
    first = frozenset(s.key for s in own)
    cache_bytes, dtype = device.cache_bytes, device.dtypes[0]
    job = ProfileJob(accelerator, machine, shapes, options.budget_s, cache_bytes, dtype, at_once, first)
    return device, accelerator, job


def split_models(names: Sequence[str]) -> tuple[list[ModelSpec], list[NeuralNetwork]]:
    """Return the language models and the networks among names and files.

    Raises:
        InputError: A name is that of neither, or a file is damaged.
    """
    models, networks = [], []
    for name in names:
        if name in list_networks() or Path(name).suffix == NETWORK_SUFFIX:
            networks.append(load_network(name))
        else:
            models.append(load_model(name))
    return models, networks


def _by_engine(models: Sequence[ModelSpec], device: ProfiledDevice) -> Iterator[tuple[list[ModelSpec], bool]]:
    """Yield models, and whether plain torch serves them: on a CPU those with an encoder that reads the prompt."""
    plain = [] if device.is_cuda else [m for m in models if m.encodes_prompt]
    if others := [m for m in models if m not in plain]:
        yield others, False
    if plain:
        yield plain, True


def default_folder(name: str) -> Path:
    """Return the folder of the newest unfinished profile of this hardware, or a new folder named by the time."""
    root = user_folder().parent / "profiles"
    for folder in sorted(root.glob(f"{name}-*"), reverse=True):
        if (found := manifest.read(folder)) is not None and found.get("finished_at") is None:
            return folder
    return root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def last_folder(prefix: str) -> Path | None:
    """Return the folder of the newest session whose folder's name starts with `prefix`, or None where there is none."""
    started = {
        folder: str(found["started_at"])
        for folder in (user_folder().parent / "profiles").glob(f"{prefix}*")
        if (found := manifest.read(folder)) is not None
    }
    return max(started, key=lambda folder: started[folder], default=None)


@dataclass(frozen=True, slots=True)
class Installation:
    """What became of the bundle of a profile.

    Attributes:
        bundle: The path of its bundle.json, in the folder of the profile.
        folder: The folder in which it is installed; None if it is not.
        peaks: The file of measured peaks; None where nothing was installed, or where the catalog knows the peaks.
        why_not: Why it is not installed, in words; "" if it is.
    """

    bundle: Path
    folder: Path | None
    peaks: Path | None = None
    why_not: str = ""


def fit_and_install(done: ProfileResult, allow_contended: bool = False) -> Installation:
    """Fit a bundle to a finished profile and install it, so that `plan` and `simulate` use it.

    Unless `allow_contended` is true, nothing is installed if most rows were measured while other processes used the
    machine, or if such a profile would replace one that is not contended.
    """
    from calibration.profile.profile_bundle import fit_profile, install, reason_against
    from calibration.profile.session.tables import contended_share

    bundle = fit_profile(done.session.rows, done.facts, done.accelerator, done.folder)
    why_not = reason_against(bundle, done.accelerator.name, contended_share(done.session.rows))
    if why_not is not None and not allow_contended:
        return Installation(bundle, None, None, why_not)
    peaks = None
    as_of, source = done.facts["started_at"][:10], f"calibrate profile, torch {done.facts['libraries']['torch']}"
    host_copies(done.accelerator.full_name, as_of, source, done.session.rows).save()
    if done.accelerator.name == "local":
        peaks = MeasuredPeaks.of(done.accelerator, as_of, source).save()
    return Installation(bundle, install(bundle, done.accelerator.name), peaks)


@contextmanager
def progress(total_s: float) -> Iterator[ProgressReporter]:
    """Show how much of the budget of a profile is spent on stderr, and lines of single events."""
    if not sys.stderr.isatty():
        with PlainLines("profiling") as lines:

            def spend(spent_s: float, what: str) -> None:
                lines.text = f"{percent(min(spent_s / total_s, 1.0))} of the budget is spent, {what}"

            yield ProgressReporter(show_on_stderr, spend)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("profiling"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total_s)

        def line(text: str) -> None:
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield ProgressReporter(
            line, lambda spent_s, what: bar.update(task, completed=min(spent_s, total_s), description=what)
        )
