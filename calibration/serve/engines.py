"""Command lines that start real engines with the same settings as the simulator."""

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

#: Processes that need a core each while a worker of vLLM computes: engine core, API server and client.
PROCESSES_BESIDE_THE_WORKER: Final = 3

DTYPES: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits(Limits):
    """The limits of a served engine, which the simulator uses as well."""

    weight_dtype: str
    threads: int  # threads on a CPU

    @property
    def torch_dtype(self) -> str:
        """Return the weight dtype under the name that torch gives it.

        Raises:
            InputError: If the weight dtype is quantised.
        """
        if self.weight_dtype not in DTYPES:
            raise InputError("a comparison requires unquantised weights", self.weight_dtype, "fp32, bf16 or fp16")
        return DTYPES[self.weight_dtype]


def vllm(python: Path, model: Path, port: int, limits: ServedLimits, on_cpu: bool) -> Launch:
    """Return the launch of vLLM's API server, greedy, with the iteration log and without a prefix cache.

    On a CPU, vLLM computes in a worker process, and the worker and the engine core wait for each other actively
    (`SpinCondition` in shm_broadcast.py): both keep a core busy beside those of the API server and of the client. On
    machines without that many cores the tokens of a request then reach the client together, up to seconds late.
    There the engine core computes itself, as it does on one GPU; its log then times only the rest of a step.

    Raises:
        InputError: If the weight dtype is quantised.
    """
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", limits.torch_dtype, "--max-model-len", str(limits.max_model_len)]
    command += ["--max-num-seqs", str(limits.max_num_seqs)]
    command += ["--max-num-batched-tokens", str(limits.max_num_batched_tokens)]
    command += ["--block-size", str(limits.block_size), "--no-enable-prefix-caching"]
    command += ["--override-generation-config", '{"temperature": 0.0}', "--enable-logging-iteration-details"]
    if limits.kv_blocks:
        command += ["--num-gpu-blocks-override", str(limits.kv_blocks)]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = (
        "3600"  # a server that closes an idle connection breaks a request sent at that moment
    )
    if on_cpu:
        command += ["--enforce-eager"]
        cores = sorted(os.sched_getaffinity(0))[: limits.threads]
        env |= {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "OMP_NUM_THREADS": str(limits.threads)}
        env |= {"VLLM_CPU_KVCACHE_SPACE": "2"}
        if len(os.sched_getaffinity(0)) < limits.threads + PROCESSES_BESIDE_THE_WORKER:
            command += ["--distributed-executor-backend", "uni"]
            env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # else vLLM replaces "uni" on CPUs; a server ignores it
            return Launch("vllm", tuple(command), port, env, logs_steps=False)
    return Launch("vllm", tuple(command), port, env)


def llama_cpp(server: Path, model: Path, port: int, limits: ServedLimits) -> Launch:
    """Return the launch of llama.cpp's server with one slot per sequence and without prompt caches.

    The order in which slots were released decides which slots are neighbours, and only neighbours share a pass over the
    weights. Each replay therefore starts a new server, as each simulation does.

    Args:
        server: The llama-server executable.
        model: A GGUF file.
        port: Port of the server.
        limits: Limits of the engine.
    """
    command = [str(server), "-m", str(model), "--alias", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["-np", str(limits.max_num_seqs), "-c", str(limits.max_num_seqs * limits.max_model_len)]
    command += ["-t", str(limits.threads), "-tb", str(limits.threads)]
    command += ["-b", str(limits.max_num_batched_tokens), "-ub", str(limits.max_num_batched_tokens)]
    command += ["--no-webui", "--cache-ram", "0", "--no-cache-prompt", "--metrics", "--temp", "0"]
    return Launch("llama.cpp", tuple(command), port, restart_per_replay=True)


def find_vllm(given: Path | None) -> Path:
    """Return the Python interpreter of vLLM's environment.

    It is the given one, this one, or the one in the folder of the `vllm` command on the PATH.

    Raises:
        InputError: If there is none.
    """
    if given is not None:
        if not given.is_file():
            raise InputError("there is no such Python interpreter", str(given))
        return given
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    found = shutil.which("vllm")
    python = Path(found).resolve().parent / "python" if found else None
    if python is None or not python.is_file():
        raise InputError("vLLM is not installed; give the Python of its environment", hint="give --python PATH")
    return python


def find_llama_server(given: Path | None) -> Path:
    """Return the llama-server executable: the given one, or the one on the PATH.

    Raises:
        InputError: If there is none.
    """
    found = str(given) if given is not None else shutil.which("llama-server")
    if found is None or not Path(found).is_file():
        raise InputError("llama.cpp's server was not found; give its path", found, hint="give --server PATH")
    return Path(found)
