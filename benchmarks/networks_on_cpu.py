"""Networks on this CPU: profiled in three minutes, then run for real in torch at three batch sizes, and compared.

    python benchmarks/networks_on_cpu.py --out DIR             # six networks, about eight minutes
    python benchmarks/networks_on_cpu.py --out DIR --budget 15 --batches 1 --networks t5-small-encoder   # a rehearsal

1. run      `calibrate run --hw local --threads 1 --budget 3m --dtype fp32 --model NETWORK ...`, into DIR alone
2. measure  each network as its library builds it, with random weights, eager, fp32, one thread, in a process of its own
3. compare  the seconds that `price_job` predicts from the bundle with those measured: a table, and DIR/compared.json

Batches 3 and 6 are not measured by the profile, whose batches are 1, 2, 4 and 8 (SAM 2 runs at 1, 2 and 3). The
machine should do nothing else: each measurement states the share of the processors that other processes used. It needs
the libraries of the extra `trace` (torch, transformers, timm, diffusers). Nothing is written to the user's own
calibrations.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

NETWORKS: Final = ("resnet50", "vit_base_patch16_224", "bert-base", "t5-small-encoder", "sam2_hiera_tiny", "dit-s-2")

#: Batches in which the networks run.
BATCHES: Final = (1, 3, 6)

#: Batches of networks that take seconds for one input.
SMALL_BATCHES: Final = {"sam2_hiera_tiny": (1, 2, 3)}

DTYPE: Final = "fp32"

#: Seconds that the repeats of one batch may take, beyond the least number of repeats.
REPEATS_S: Final = 3.0

#: DiT-S/2 (arXiv 2212.09748, table 1) for latent images of 32 x 32: no file of the catalog is as small.
DIT: Final[dict[str, Any]] = {
    "family": "image generation",
    "source": "arXiv 2212.09748, DiT-S/2 for images of 256 x 256",
    "sizes": {"batch": {"default": 1, "meaning": "inputs that run together"}},
    "stages": {
        "denoiser": {
            "module": "diffusers.DiTTransformer2DModel",
            "config": {
                "num_attention_heads": 6,
                "attention_head_dim": 64,
                "in_channels": 4,
                "out_channels": 8,
                "num_layers": 12,
                "sample_size": 32,
                "patch_size": 2,
            },
            "inputs": {
                "hidden_states": ["batch", 4, 32, 32],
                "timestep": {"shape": ["batch"], "dtype": "int64"},
                "class_labels": {"shape": ["batch"], "dtype": "int64"},
            },
        }
    },
}


def recipe_of(name: str) -> Any:
    """Return the recipe of a network: which class, configuration and inputs make it."""
    from catalogs.trace.recipes import NetworkRecipe, shipped_recipes

    return NetworkRecipe.model_validate(DIT) if name == "dit-s-2" else shipped_recipes()[name]


def network_file(name: str, folder: Path) -> str:
    """Return the name of a network in the catalog, or the file into which it is traced now."""
    if name != "dit-s-2":
        return name
    from catalogs.networks.files import write_network
    from catalogs.trace.trace import trace_network

    path = folder / f"{name}.yaml"
    if not path.is_file():
        write_network(trace_network(name, recipe_of(name)), path)
    return str(path)


def calibrate(names: tuple[str, ...], out: Path, budget_s: float) -> None:
    """Profile the networks' own shapes, and fit a bundle, in a process of its own and a data folder of its own."""
    command = [sys.executable, "-m", "calibration.cli.main", "run", "--hw", "local", "--threads", "1"]
    command += ["--allow-contended"]  # into a data folder of its own; the bundle states the share
    command += ["--budget", f"{budget_s:.0f}s", "--dtype", DTYPE, "--out", str(out / "profile")]
    for name in names:
        command += ["--model", network_file(name, out)]
    subprocess.run(command, check=True, env=environment(out))


def environment(out: Path) -> dict[str, str]:
    """Return the environment of the processes: their own data folder, no network, one thread."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "XDG_DATA_HOME": str(out / "data"),
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def measure(name: str, batches: tuple[int, ...], device: Any = None, dtype: str = DTYPE) -> list[dict[str, Any]]:
    """Return the seconds of one forward pass at each batch, by the same clock as those of the profile.

    `device` is that of a profile; None is one thread of this CPU.
    """
    from calibration.profile.machine.allocator import keep_freed_memory
    from calibration.profile.machine.contention import others_share, usage
    from calibration.profile.machine.device import open_device
    from calibration.profile.machine.timing import Work
    from calibration.profile.machine.timing import measure as timed

    device = device or open_device("cpu", 1)
    if not device.is_cuda:
        keep_freed_memory()  # as the profile does
    torch = device.torch
    torch.manual_seed(0)
    recipe = recipe_of(name)
    module = real_module(recipe).to(device.kind, device.dtype(dtype)).eval()
    found = []
    for batch in batches:
        inputs = real_inputs(recipe, batch, device, device.dtype(dtype))
        with torch.inference_mode():
            before = usage()
            timing = timed(Work([lambda given=inputs: module(**given)], name, graph=False), device, REPEATS_S)
            others = others_share(before, usage(), len(device.cores))
        line = {"network": name, "batch": batch, "seconds": timing.seconds, "runs": len(timing.samples_s)}
        found.append(line | {"ci": round(timing.ci_fraction, 3), "others_share": round(others, 3)})
    return found


def real_module(recipe: Any) -> Any:
    """Return the module of a recipe of one stage, with random weights."""
    from catalogs.trace.modules import module_maker

    (stage,) = recipe.stages.values()
    return module_maker(stage.module, dict(stage.config))()


def real_inputs(recipe: Any, batch: int, device: Any, dtype: Any) -> dict[str, Any]:
    """Return random inputs with the shapes of a recipe of one stage."""
    from torch.utils._pytree import tree_map

    from catalogs.trace.modules import make_inputs

    torch, kind = device.torch, device.kind
    (stage,) = recipe.stages.values()
    sizes = {name: size.default for name, size in recipe.sizes.items()} | {"batch": batch}

    def random(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, device=kind, dtype=dtype)
        return torch.randint(0, 100, x.shape, device=kind)

    made: dict[str, Any] = tree_map(random, make_inputs(stage.inputs, sizes, dtype))
    return made


def compare(out: Path, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each measurement with the prediction of the bundle in `out`."""
    from dataclasses import replace

    from calibration.bundles.bundle import load_bundle
    from calibration.profile.peaks import measured as with_peaks
    from calibration.profile.session.session import Session
    from catalogs.hardware.catalog import parse_hardware
    from catalogs.networks.files import load_network
    from simulator.networks.execution import Execution
    from simulator.networks.job import price_job

    hardware = parse_hardware("local")
    rows = Session.open(out / "profile", print).rows
    unit = with_peaks(hardware.accelerator, rows, hardware.accelerator.cache_bytes)
    bundle = load_bundle(replace(unit, name="local"), out / "profile" / "bundle")
    execution = Execution(mode="eager", precision=DTYPE)
    found = []
    for line in measured:
        network = load_network(network_file(line["network"], out))
        price = price_job(network, bundle, hardware, execution, {"batch": line["batch"]})
        (stage,) = price.stages
        known = {"measured_share": round(stage.measured, 3), "interpolated_share": round(stage.interpolated, 3)}
        error = price.seconds / line["seconds"] - 1.0
        found.append(line | {"predicted_s": price.seconds, "error": round(error, 4), **known})
    return found


def table(lines: list[dict[str, Any]]) -> str:
    """Return the comparison as a table of Markdown."""
    from catalogs.ui.words import percent

    head = "| network | batch | measured | predicted | error | at measured points | others' share |\n"
    head += "|---|---:|---:|---:|---:|---:|---:|\n"
    return head + "\n".join(
        f"| {x['network']} | {x['batch']} | {x['seconds'] * 1e3:,.1f} ms | {x['predicted_s'] * 1e3:,.1f} ms "
        f"| {percent(x['error'], 1, signed=True)} | {percent(x['measured_share'])} | {percent(x['others_share'])} |"
        for x in lines
    )


def run_all(names: tuple[str, ...], batches: tuple[int, ...], out: Path, budget_s: float) -> list[dict[str, Any]]:
    """Run every step; a profile and measurements that `out` already holds are used again."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "profile" / "bundle" / "bundle.json").is_file():
        calibrate(names, out, budget_s)
    lines = []
    for name in names:
        path = out / f"measured-{name}.json"
        if not path.is_file():
            sizes = SMALL_BATCHES.get(name, batches) if batches == BATCHES else batches
            command = [sys.executable, str(Path(__file__).resolve()), "--out", str(out), "--measure", name]
            command += ["--batches", *map(str, sizes)]
            run = subprocess.run(command, check=True, env=environment(out), stdout=subprocess.PIPE, text=True)
            path.write_text(run.stdout.splitlines()[-1] + "\n")
        lines += compare(out, json.loads(path.read_text()))
    (out / "compared.json").write_text(json.dumps(lines, indent=1) + "\n")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the profile and the measurements")
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of profiling")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--only", choices=("run", "measure"), help="end after this step")
    parser.add_argument("--measure", choices=NETWORKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    out, names, batches = given.out.resolve(), tuple(given.networks), tuple(given.batches)
    if given.measure:
        print(json.dumps(measure(given.measure, batches)))
    elif given.only == "run":
        out.mkdir(parents=True, exist_ok=True)
        calibrate(names, out, given.budget)
    else:
        print(table(run_all(names, batches, out, given.budget)), flush=True)


if __name__ == "__main__":
    main()
