"""Arguments of the server of padded batches for one replica (calibration/serve/batch_server.py of this product).

`generate` of transformers has no server of its own for encoder-decoder models: `transformers serve` starts decoders.
The server is a module of this product, so the product must be installed where it runs, with its extra `calibration`
(torch and transformers).
"""

from __future__ import annotations

from typing import Final

from catalogs.deployments.resolved import ResolvedDeployment
from catalogs.errors import InputError
from catalogs.hardware.specs import Accelerator
from catalogs.launch.arguments import Arguments, folder_notes, weights_at

PROGRAM: Final = ("python3", "-m", "calibration.serve.batch_server")

#: torch's names of the dtypes that weights can be loaded in.
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

INSTALL: Final = "install this product with its extra `calibration` (torch, transformers) where the server runs"

#: torch's names of the devices of makers whose GPUs are not `cuda` (AMD's are).
_DEVICES: Final = {"intel": "xpu", "google": "xla"}


def _device(unit: Accelerator) -> str:
    """Return torch's name of the device of an accelerator."""
    if unit.kind == "cpu":
        return "cpu"
    return "hpu" if unit.architecture.startswith("gaudi") else _DEVICES.get(unit.maker, "cuda")


def _device_notes(device: str) -> tuple[str, ...]:
    """Return a note about devices for which torch needs a package that the server does not import."""
    if device not in ("hpu", "xla"):
        return ()
    return (f"the server does not import the package that gives torch the device {device}: it does not start as it is",)


def transformers_static_arguments(resolved: ResolvedDeployment) -> Arguments:
    """Return the arguments of one replica.

    Raises:
        InputError: The weights have a dtype that plain torch does not load, or several accelerators share them.
    """
    r = resolved
    if r.weight_dtype not in _DTYPES:
        raise InputError(f"{r.engine.name} loads weights in 16 or 32 bit", r.weight_dtype, "bf16")
    if r.accelerators_per_replica > 1:
        raise InputError(f"{r.engine.name} serves a model on one accelerator", r.layout.words, "tensor_parallel: 1")
    sizes = r.queueing.preferred_batch_sizes
    if sizes not in ((), (r.limits.max_num_seqs,)):
        rule = "the server of padded batches waits for a full batch only"
        raise InputError(rule, f"preferred_batch_sizes: {list(sizes)}", f"[{r.limits.max_num_seqs}]")
    at, device = weights_at(r.model), _device(r.hardware.accelerator)
    flags: list[tuple[str, str | None]] = [
        ("--model", at),
        ("--max-batch-size", str(r.limits.max_num_seqs)),
        ("--max-batch-tokens", str(r.limits.max_num_batched_tokens)),
        ("--dtype", _DTYPES[r.weight_dtype]),
        ("--device", device),
    ]
    if r.queueing.max_delay_s:
        flags.append(("--max-delay-ms", f"{r.queueing.max_delay_s * 1e3:g}"))
    return Arguments(PROGRAM, tuple(flags), (INSTALL, *_device_notes(device), *folder_notes(r.model)), model=at)
