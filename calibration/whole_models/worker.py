"""The process that holds one model: reads orders as JSON lines on stdin, answers each with one on stdout.

On a CPU every point runs in a fork of it, so that memory starts the same for each and a point that is killed takes
nothing with it. Nothing parallel may run before a fork (OpenMP's threads do not survive it): building has one thread.
On CUDA, which does not survive a fork at all, points run here.
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
from contextlib import suppress
from typing import Any, Final, TextIO

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main() -> None:
    """Entry point of `python -m calibration.whole_models.worker`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--cores", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    given = parser.parse_args()
    _dies_with_parent()
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # the parent may have been bound to one core by OpenMP
            os.sched_setaffinity(0, [int(c) for c in given.cores.split(",")])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    config = json.loads(sys.stdin.readline())
    generator = _built(config, given.device, given.threads, given.dtype)
    from calibration.whole_models.memory import model_bytes

    count = sum(p.numel() for p in generator.model.parameters())
    _say(answers, {"ready": True, "params": count, "model_bytes": model_bytes(generator.model)})
    for line in sys.stdin:
        _say(answers, _answer(generator, json.loads(line)))


def _say(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def _built(config: dict[str, Any], kind: str, threads: int, dtype: str) -> Any:
    """The model with random weights, in eval mode, as a Generator."""
    from calibration.profile.machine.device import open_device
    from calibration.whole_models.generation import Generator
    from calibration.whole_models.memory import USUAL, set_malloc
    from calibration.whole_models.weights import tiled_random

    device = open_device(kind, threads)
    torch, transformers = device.torch, importlib.import_module("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(**config)
    pair = bool(getattr(settings, "is_encoder_decoder", False))
    maker = transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM
    with tiled_random(torch):
        model = maker.from_config(settings).to(device.dtype(dtype)).eval()
    gc.collect()  # tied weights leave a second copy behind
    set_malloc(*USUAL)
    return Generator(model.to("cuda") if device.is_cuda else model, device, transformers, pair)


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
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return {"status": "oom", "reason": "the system killed the process: out of memory"}
    return {"status": "error", "reason": f"the process died (status {status})"}


def _child(generator: Any, order: dict[str, Any], writing: int) -> None:
    """Measure in a fork, write the row, end without cleaning up what belongs to the parent."""
    try:
        _dies_with_parent()
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
    from calibration.whole_models.measure_point import MeasurementOrder, row
    from calibration.whole_models.workloads import Point

    return row(generator, MeasurementOrder(Point(**order["point"]), order["limit_s"]), open_meter(generator.device))


def _dies_with_parent() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
