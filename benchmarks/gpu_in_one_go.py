"""Make all measurements that need a GPU machine, within ten minutes: profile, fit, compare, verify, collect.

    python benchmarks/gpu_in_one_go.py --out DIR             # from a checkout, nothing installed, no network
    python benchmarks/gpu_in_one_go.py --out DIR --rehearse  # the same on a CPU with a tiny model: no figures

1. run      `calibrate run --hw local --budget 4m --model llama3.1-8b --model bert-base ...`: rows with power, bundle
2. compare  the rows against the bundle shipped for the same GPU, which was fitted from public tables
3. networks bert-base, dinov2-base and, where timm is installed, resnet50 in torch, eager, bf16, random weights, against
            the prices of the bundle of step 1
4. verify   transformers' continuous batching in process, Llama-3.1-8B's shape in bf16, random weights made on the
            device, against the simulation on the bundle of step 1

Each step is a process of its own with a time limit; one that fails or is stopped leaves the others alone. Then DIR
holds few flat files: rows.parquet, power.parquet, manifest.json, bundle.json, arrays.npz, networks.json, verify.json,
summary.json and details.tar.gz (logs, raw rows, every request). Raw output is in DIR.work until then. Nothing is
written to the user's own calibrations. Exit 0 where every step ran, 1 where one did not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # nothing needs to be installed

#: Imported on the way; transformers' own needs come with it.
BARE = ("torch", "transformers", "numpy", "pandas", "pyarrow", "yaml", "rich", "scipy", "typer")
CARRIED = ("pydantic", "platformdirs", "simpy")  # absent from images made for training

#: Largest table of rows: larger ones are too large for a repository.
LARGEST_ROWS_BYTES = 5_000_000

#: Seconds that are kept for collecting the results, for the comparison and for the networks, and those that the fit may
#: take beyond the budget.
COLLECT_S, COMPARE_S, NETWORKS_S, FIT_S = 20.0, 60.0, 75.0, 120.0
#: Networks that are not language models, by the library that builds each; the last one is that of a rehearsal.
NETWORKS = {"bert-base": "transformers", "dinov2-base": "transformers", "resnet50": "timm"}

#: Batches in which the networks run.
NETWORK_BATCHES = (1, 6, 24)
REHEARSED = "t5-small-encoder"
GRACE_S = 10.0  # between an interrupt and the end
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 352,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Plan:
    """What is done, and where. `model`: a catalog name, or the folder with the config of a rehearsal."""

    out: Path
    work: Path
    model: str
    budget_s: float
    limit_s: float
    rehearse: bool

    @property
    def profile(self) -> Path:
        return self.work / "profile"

    @property
    def networks(self) -> tuple[str, ...]:
        """Return the networks whose library is installed."""
        if self.rehearse:
            return (REHEARSED,)
        return tuple(name for name, library in NETWORKS.items() if importlib.util.find_spec(library) is not None)

    @property
    def dtype(self) -> str:
        return "fp32" if self.rehearse else "bf16"


@dataclass
class Outcome:
    """How a step ended."""

    step: str
    status: str  # "done", "exit status N", "stopped after N s"
    seconds: float


def missing(rehearse: bool) -> str | None:
    """Return one line that names the packages to bring as wheels; None if none is missing."""
    driver = () if rehearse else ("pynvml",)
    absent = [name for name in (*BARE, *driver, *CARRIED) if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    names = " ".join({"yaml": "PyYAML", "pynvml": "nvidia-ml-py"}.get(name, name) for name in absent)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"missing here: {names}. Where there is a network: pip download --only-binary=:all: --python-version {python} "
        f"--platform manylinux2014_x86_64 -d wheels {names}; here: pip install --no-index --no-deps --target site "
        "wheels/*.whl, and PYTHONPATH=site"
    )


# ---- steps, each in a process of its own


def step_compare(plan: Plan) -> None:
    """Write comparison.json: the seconds that the shipped bundle predicts over those measured here, by family."""
    from calibration.bundles.bundle import load_bundle, shipped_folder
    from calibration.rows.dataset import read_rows
    from catalogs.hardware.catalog import parse_hardware

    unit = parse_hardware("local").accelerator
    name = "h100" if plan.rehearse else unit.name
    folder = shipped_folder() / name
    if not (folder / "bundle.json").is_file():
        raise SystemExit(f"no calibration is shipped for {name}")
    bundle = load_bundle(parse_hardware(name).accelerator, folder)
    found = []
    for part in ("rows", "held_out"):
        folder = plan.profile / part
        for family, rows in read_rows(folder).items() if any(folder.glob("*.parquet")) else ():
            try:
                found += ratios(bundle, family, rows, part)
            except (KeyError, ValueError) as error:
                print(f"  {family}: not comparable ({type(error).__name__}: {error})")
    for x in found:
        spread = f"median {x['median']:.3f}  p10 {x['p10']:.3f}  p90 {x['p90']:.3f}"
        print(f"  {x['family']:18} {x['rows']:9} {x['dtype']:5} n {x['n']:>5}  shipped/measured {spread}")
    if plan.rehearse:
        print("  a rehearsal compares a CPU with an H100: the ratios mean nothing")
    write(plan.work / "comparison.json", {"shipped": bundle.name, "measured_on": unit.full_name, "families": found})


def ratios(bundle: Any, family: str, rows: Any, part: str) -> list[dict[str, Any]]:
    """Return a line for each dtype of a family that both sides have."""
    import numpy as np

    from calibration.fitting.cross_validation import as_engine, predict
    from calibration.rows.physics_check import gate

    model = bundle.models.get(family)
    if model is None:
        print(f"  {family}: not in the shipped calibration")
        return []
    kept = as_engine(family, gate(family, rows, bundle.accelerator)[0])
    column = next((c for c in ("dtype", "kv_dtype") if c in kept.columns), None)
    found = []
    for dtype, own in kept.groupby(column) if column else [("", kept)]:
        own = own.reset_index(drop=True)
        ratio = predict(model, own, bundle.accelerator) / own.seconds.to_numpy(float)
        p10, median, p90 = (float(q) for q in np.quantile(ratio, [0.1, 0.5, 0.9]))
        line = {"family": family, "rows": part, "dtype": str(dtype), "n": len(own)}
        found.append(line | {"median": median, "p10": p10, "p90": p90})
    return found


def step_networks(plan: Plan) -> None:
    """Write networks.json: whole networks in torch compared with their prices by the bundle of the profile."""
    from calibration.bundles.bundle import load_bundle
    from calibration.profile.machine.device import open_device
    from catalogs.hardware.catalog import parse_hardware
    from catalogs.networks.files import load_network
    from simulator.networks.execution import Execution
    from simulator.networks.job import price_job

    sys.path.insert(0, str(ROOT / "benchmarks"))
    networks = importlib.import_module("networks_on_cpu")
    hardware = parse_hardware("local")
    bundle = load_bundle(hardware.accelerator, plan.profile / "bundle")
    device = open_device("cpu", 1) if plan.rehearse else open_device()
    execution = Execution(mode="eager", precision=plan.dtype)
    batches = NETWORK_BATCHES[:1] if plan.rehearse else NETWORK_BATCHES
    lines = [line for name in plan.networks for line in networks.measure(name, batches, device, plan.dtype)]
    for line in lines:
        price = price_job(load_network(line["network"]), bundle, hardware, execution, {"batch": line["batch"]})
        line |= {"predicted_s": price.seconds, "error": price.seconds / line["seconds"] - 1.0}
        times = f"{line['seconds'] * 1e3:.2f} ms  predicted {price.seconds * 1e3:.2f} ms"
        print(f"  {line['network']:16} batch {line['batch']:>3}  {times}  error {line['error']:+.1%}", flush=True)
    write(plan.work / "networks.json", {"bundle": bundle.name, "precision": plan.dtype, "networks": lines})


def step_verify(plan: Plan) -> None:
    """Write verify.json and every request: transformers in this process compared with the simulation."""
    from dataclasses import replace

    from calibration.serve.transformers_engine import TransformersEngine
    from catalogs.models.catalog import load_model
    from simulator.verify.engines import SHORT_LIMITS, EngineChoice, engine_subject
    from simulator.verify.screen import document, print_verification
    from simulator.verify.session import VerificationEffort, verify
    from simulator.verify.trials import TrialSize

    limits = replace(SHORT_LIMITS, weight_dtype=plan.dtype)
    if plan.rehearse:
        limits = replace(limits, max_num_seqs=4)
    began = time.monotonic()
    engine = TransformersEngine.random(llama_config(load_model(plan.model)), limits)
    print(f"weights made in {time.monotonic() - began:.1f} s", flush=True)
    effort = (
        VerificationEffort(TrialSize(requests=10), 2, (20.0,))
        if plan.rehearse
        else VerificationEffort(TrialSize(requests=60), 2)
    )
    found = verify(
        engine_subject("transformers", EngineChoice(Path(plan.model), limits), None),
        engine,
        effort,
        plan.work / "verify",
        print,
    )
    write(plan.work / "verify.json", document(found))
    steps = engine.steps()
    if steps is not None:
        steps.to_parquet(plan.work / "verify" / "steps.parquet", index=False)
    print_verification(found)


def llama_config(spec: Any) -> dict[str, Any]:
    """Return the config.json of a plain Llama of the catalog."""
    group = spec.groups[0]
    if spec.architecture != "LlamaForCausalLM" or len(spec.groups) != 1:
        raise SystemExit(f"only plain Llama models are made here, not {spec.architecture}")
    return {
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.n_layers,
        "intermediate_size": group.ffn.intermediate_size,
        "num_attention_heads": group.mixer.n_heads,
        "num_key_value_heads": group.mixer.n_kv_heads,
        "head_dim": group.mixer.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_tokens,
        "tie_word_embeddings": spec.tied_embeddings,
    }


STEPS: dict[str, Callable[[Plan], None]] = {
    "compare": step_compare,
    "networks": step_networks,
    "verify": step_verify,
}


# ---- running them


def commands(plan: Plan) -> list[tuple[str, list[str], float]]:
    """Return each step with its command and the seconds that it may take."""
    profile = [
        sys.executable,
        "-m",
        "calibration.cli.main",
        "run",
        "--hw",
        "local",
        "--budget",
        f"{plan.budget_s:.0f}s",
    ]
    for model in (plan.model, *plan.networks):
        profile += ["--model", model]
    profile += ["--out", str(plan.profile), "--allow-contended"]  # installed in a data folder of its own
    if plan.rehearse:
        profile += ["--dtype", "fp32", "--threads", "1"]
    again = [sys.executable, str(Path(__file__).resolve()), "--out", str(plan.out), "--model", plan.model]
    again += ["--rehearse"] if plan.rehearse else []
    return [
        ("run", profile, plan.budget_s + FIT_S),
        ("compare", [*again, "--step", "compare"], COMPARE_S),
        ("networks", [*again, "--step", "networks"], NETWORKS_S),
        ("verify", [*again, "--step", "verify"], plan.limit_s),
    ]


def run_step(name: str, command: list[str], limit_s: float, plan: Plan) -> Outcome:
    """Run to its end or its limit, output here and into a log. Interrupted first, which keeps rows, then killed."""
    print(f"== {name} (at most {limit_s:.0f} s)", flush=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"XDG_DATA_HOME": str(plan.work / "data"), "PYTHONPATH": os.pathsep.join(paths)}
    env |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    late = threading.Event()
    timers = [threading.Timer(limit_s, _end, (process, signal.SIGINT, late))]
    timers.append(threading.Timer(limit_s + GRACE_S, _end, (process, signal.SIGKILL, late)))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        with (plan.work / f"{name}.log").open("w") as log:
            for line in process.stdout or ():
                log.write(line)
                print(line, end="", flush=True)
        code = process.wait()
    finally:
        for timer in timers:
            timer.cancel()
        _end(process, signal.SIGKILL, threading.Event())  # also where this process was interrupted
    seconds = time.monotonic() - began
    status = f"stopped after {limit_s:.0f} s" if late.is_set() else "done" if code == 0 else f"exit status {code}"
    return Outcome(name, status, round(seconds, 1))


def _end(process: subprocess.Popen[str], sign: signal.Signals, late: threading.Event) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)
        late.set()


# ---- what is collected


def collect(plan: Plan, outcomes: list[Outcome]) -> dict[str, Any]:
    """Write the results to plan.out; the summary names every result that is missing."""
    problems: list[str] = []
    for what in (_rows, _copies, _details):
        try:
            what(plan, problems)
        except Exception as error:  # what else there is must still come home
            problems.append(f"{what.__name__.strip('_')}: {error}")
    comparison = plan.work / "comparison.json"
    summary = {
        "schema_version": 1,
        "rehearsal": plan.rehearse,
        "model": plan.model,
        "steps": [asdict(o) for o in outcomes],
        "problems": problems,
        "comparison": json.loads(comparison.read_text()) if comparison.is_file() else None,
        "files": {f.name: f.stat().st_size for f in sorted(plan.out.iterdir())},
    }
    write(plan.out / "summary.json", summary)
    return summary


def _rows(plan: Plan, problems: list[str]) -> None:
    import pandas as pd

    from calibration.profile.session.session import Session
    from calibration.profile.session.tables import write_measured

    if not (plan.profile / "rows.jsonl").is_file():
        raise FileNotFoundError("nothing was measured")
    session = Session.open(plan.profile, print)
    path = write_measured(session.rows, plan.out / "rows.parquet")
    if path.stat().st_size > LARGEST_ROWS_BYTES:
        problems.append(f"rows.parquet is over {LARGEST_ROWS_BYTES / 1e6:.0f} MB")
    frame = pd.read_parquet(path)
    if "watts" not in frame.columns or not frame.watts.notna().any():
        problems.append("no row has power: the energy counter could not be read")
        return
    frame[frame.watts.notna()].dropna(axis=1, how="all").to_parquet(plan.out / "power.parquet", index=False)


def _copies(plan: Plan, problems: list[str]) -> None:
    wanted = ("profile/manifest.json", "profile/bundle/bundle.json", "profile/bundle/arrays.npz")
    wanted += ("networks.json", "verify.json")
    for name in wanted:
        if (plan.work / name).is_file():
            shutil.copy(plan.work / name, plan.out)
        else:
            problems.append(f"there is no {Path(name).name}")


def _details(plan: Plan, problems: list[str]) -> None:  # noqa: ARG001
    with tarfile.open(plan.out / "details.tar.gz", "w:gz") as archive:
        logs = ("run.log", "compare.log", "networks.log", "verify.log")
        for name in (*logs, "profile/rows.jsonl", "profile/report.html", "verify"):
            if (plan.work / name).exists():
                archive.add(plan.work / name, name)


def write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n")


def main(args: list[str] | None = None) -> int:
    plan, step = parse(args)
    if step is not None:
        STEPS[step](plan)
        return 0
    line = missing(plan.rehearse)
    if line is not None:
        print(line, file=sys.stderr)
        return 2
    plan.out.mkdir(parents=True, exist_ok=True)
    plan.work.mkdir(parents=True, exist_ok=True)
    if plan.rehearse:
        Path(plan.model).mkdir(exist_ok=True)
        write(Path(plan.model) / "config.json", TINY)
    ends = time.monotonic() + plan.limit_s - COLLECT_S
    outcomes = []
    for name, command, limit_s in commands(plan):
        left = ends - time.monotonic()
        if left < 10.0:
            outcomes.append(Outcome(name, "no time was left", 0.0))
            continue
        outcomes.append(run_step(name, command, min(limit_s, left), plan))
    summary = collect(plan, outcomes)
    print("== summary")
    for outcome in outcomes:
        print(f"  {outcome.step:8} {outcome.status} ({outcome.seconds:.0f} s)")
    for problem in summary["problems"]:
        print(f"  {problem}")
    print(f"  {plan.out}: " + ", ".join(f"{name} {size / 1e3:.0f} kB" for name, size in summary["files"].items()))
    return 0 if all(o.status == "done" for o in outcomes) else 1


def parse(args: list[str] | None) -> tuple[Plan, str | None]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for what is collected")
    parser.add_argument("--model", help="of the catalog; default: llama3.1-8b")
    parser.add_argument("--budget", type=float, help="seconds of measuring; default: 240, a rehearsal's 15")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds of everything")
    parser.add_argument("--rehearse", action="store_true", help="a tiny model and budget, on a CPU too")
    parser.add_argument("--step", choices=sorted(STEPS), help=argparse.SUPPRESS)
    given = parser.parse_args(args)
    out = given.out.resolve()
    work = out.with_name(out.name + ".work")
    model = given.model or (str(work / "model") if given.rehearse else "llama3.1-8b")
    budget = given.budget or (15.0 if given.rehearse else 240.0)
    return Plan(out, work, model, budget, given.limit, given.rehearse), given.step


if __name__ == "__main__":
    sys.exit(main())
