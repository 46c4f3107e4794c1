"""How real engines are started for a comparison: a command line of exactly what the simulator is told."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from calibration.serve.server import Launch
from catalogs.deployments.layout import Limits
from catalogs.errors import InputError

SERVED_NAME: Final = "served-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits(Limits):
    """What an engine is held to, and the simulator with it."""

    weight_dtype: str
    threads: int  # on a CPU


def vllm(python: Path, model: Path, port: int, limits: ServedLimits, on_cpu: bool) -> Launch:
    """vLLM's API server with the iteration log on, greedy, without a prefix cache."""
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(limits.weight_dtype)
    if dtype is None:
        raise InputError("a comparison serves unquantised weights", limits.weight_dtype, "fp32, bf16 or fp16")
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    command += ["--max-model-len", str(limits.max_model_len), "--max-num-seqs", str(limits.max_num_seqs)]
    command += ["--max-num-batched-tokens", str(limits.max_num_batched_tokens)]
    command += ["--block-size", str(limits.block_size), "--no-enable-prefix-caching"]
    command += ["--override-generation-config", '{"temperature": 0.0}', "--enable-logging-iteration-details"]
    if limits.kv_blocks:
        command += ["--num-gpu-blocks-override", str(limits.kv_blocks)]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if on_cpu:
        command += ["--enforce-eager"]
        cores = sorted(os.sched_getaffinity(0))[: limits.threads]
        env |= {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "OMP_NUM_THREADS": str(limits.threads)}
        env |= {"VLLM_CPU_KVCACHE_SPACE": "2"}
    return Launch("vllm", tuple(command), port, env)


def llama_cpp(server: Path, model: Path, port: int, limits: ServedLimits) -> Launch:
    """llama.cpp's server, one slot for each sequence, without prompt caches; `model` is a GGUF file.

    The order in which slots were given back decides which are neighbours, and only neighbours share a pass over the
    weights: each replay begins with a new server, as each simulation does.
    """
    command = [str(server), "-m", str(model), "--alias", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["-np", str(limits.max_num_seqs), "-c", str(limits.max_num_seqs * limits.max_model_len)]
    command += ["-t", str(limits.threads), "-tb", str(limits.threads)]
    command += ["-b", str(limits.max_num_batched_tokens), "-ub", str(limits.max_num_batched_tokens)]
    command += ["--no-webui", "--cache-ram", "0", "--no-cache-prompt", "--metrics", "--temp", "0"]
    return Launch("llama.cpp", tuple(command), port, forgetful=True)


def find_vllm(given: Path | None) -> Path:
    """The Python that has vLLM: as given, this one, or the one beside `vllm` on the PATH. InputError where none is."""
    if given is not None:
        if not given.is_file():
            raise InputError("there is no such Python", str(given))
        return given
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    found = shutil.which("vllm")
    beside = Path(found).resolve().parent / "python" if found else None
    if beside is None or not beside.is_file():
        raise InputError("vLLM is not installed here; name the Python of its environment", "", "--python PATH")
    return beside


def find_llama_server(given: Path | None) -> Path:
    """llama.cpp's server: as given, or on the PATH. InputError where none is."""
    found = str(given) if given is not None else shutil.which("llama-server")
    if found is None or not Path(found).is_file():
        raise InputError("llama.cpp's server is not here; name it", found or "", "--server PATH")
    return Path(found)
