"""The process that holds one model: it reads orders as JSON lines from stdin and answers each with one line on stdout.

On a CPU every point runs in a fork of this process, so that memory starts equal for each point and a killed point
affects no other. Nothing parallel may run before a fork, because OpenMP's threads do not survive it, so the model is
built with one thread. CUDA does not survive a fork at all, so on a GPU the points run in this process. Weights are
random blocks of values that are copied repeatedly, which is faster than drawing each value.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

BLOCK: Final = 1 << 20  # values in one block of random weights


def main() -> None:
    """Run the worker, the entry point of `python -m calibration.whole_models.worker`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--cores", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    given = parser.parse_args()
    _end_with_parent()
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # OpenMP may have bound the parent to one core
            os.sched_setaffinity(0, [int(c) for c in given.cores.split(",")])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    config = json.loads(sys.stdin.readline())
    generator = _built(config, given.device, given.threads, given.dtype)
    from calibration.whole_models.memory import model_bytes

    count = sum(p.numel() for p in generator.model.parameters())
    _send(answers, {"ready": True, "params": count, "model_bytes": model_bytes(generator.model)})
    for line in sys.stdin:
        _send(answers, _answer(generator, json.loads(line)))


def _send(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def _built(config: dict[str, Any], kind: str, threads: int, dtype: str) -> Any:
    """Return the model with random weights, in eval mode, as a Generator."""
    from calibration.profile.machine.allocator import USUAL, set_thresholds
    from calibration.profile.machine.device import open_device
    from calibration.whole_models.generation import Generator

    device = open_device(kind, threads)
    torch, transformers = device.torch, importlib.import_module("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(**config)
    pair = bool(getattr(settings, "is_encoder_decoder", False))
    maker = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    with tiled_random(torch):
        model = maker.from_config(settings).to(device.dtype(dtype)).eval()
    gc.collect()  # tied weights leave a second copy
    set_thresholds(*USUAL)
    return Generator(model.to("cuda") if device.is_cuda else model, device, transformers, pair)


@contextmanager
def tiled_random(torch: Any) -> Iterator[None]:
    """Replace `normal_` and `uniform_` of CPU tensors by copies of one random block while the context is active.

    The values have the right spread and are never zero, which is sufficient for timing. With one thread this is several
    times faster than drawing each value.
    """
    drawn = torch.Generator().manual_seed(0)
    normal = torch.randn(BLOCK, generator=drawn)
    uniform = torch.rand(BLOCK, generator=drawn)

    def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, **_rest: Any) -> Any:
        return _fill(tensor, normal * std + mean, torch)

    def uniform_(tensor: Any, low: float = 0.0, high: float = 1.0, **_rest: Any) -> Any:
        return _fill(tensor, uniform * (high - low) + low, torch)

    torch.Tensor.normal_, torch.Tensor.uniform_ = normal_, uniform_
    try:
        yield
    finally:
        del torch.Tensor.normal_, torch.Tensor.uniform_


def _fill(tensor: Any, block: Any, torch: Any) -> Any:
    """Fill the tensor with repetitions of the block, in the tensor's layout."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return tensor
    with torch.no_grad():
        flat = tensor.view(-1) if tensor.is_contiguous() else None
        n = tensor.numel()
        if flat is None:
            return tensor.copy_(block.repeat(-(-n // BLOCK))[:n].view(tensor.shape))
        whole = n // BLOCK * BLOCK
        if whole:
            flat[:whole].view(-1, BLOCK).copy_(block.to(tensor.dtype))
        if n > whole:
            flat[whole:].copy_(block[: n - whole])
    return tensor


def _answer(generator: Any, order: dict[str, Any]) -> dict[str, Any]:
    if generator.device.is_cuda:
        found = _here(generator, order)
        generator.device.torch.cuda.empty_cache()
        return found
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(generator, order, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        return dict(json.loads(text))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return {"status": "oom", "reason": "the system killed the process: out of memory"}
    return {"status": "error", "reason": f"the process ended unexpectedly (status {status})"}


def _child(generator: Any, order: dict[str, Any], writing: int) -> None:
    """Measure in a fork, write the row, and exit without releasing resources of the parent."""
    try:
        _end_with_parent()
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        from calibration.whole_models.memory import limit

        limit(order["memory_bytes"])
        generator.device.torch.set_num_threads(generator.device.threads)
        found = _here(generator, order)
    except BaseException as error:
        found = {"status": "error", "reason": f"{type(error).__name__}: {error}"[:300]}
    with suppress(OSError):
        os.write(writing, json.dumps(found).encode())
    os._exit(0)


def _here(generator: Any, order: dict[str, Any]) -> dict[str, Any]:
    from calibration.profile.machine.energy import open_meter
    from calibration.whole_models.measure_point import row
    from calibration.whole_models.workloads import Point

    return row(generator, Point(**order["point"]), order["limit_s"], open_meter(generator.device))


def _end_with_parent() -> None:
    """Have the system kill this process when its parent ends."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
