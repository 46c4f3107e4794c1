"""Speculative decoding beside the one public measurement that says enough to be simulated.

    python benchmarks/speculative_check.py

vLLM pull request 25872: Llama-3.1-8B with EAGLE-3 (k = 4) on one L20, MT-bench, one client at a time. ITL is the time
of a round; TPOT is measured beside it, so their ratio is the tokens of a round. The L20 of the catalog borrows the
operator times of the L40S, which reads memory as fast (864 GB/s), so an L40S is simulated; at one sequence nothing else
binds.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from catalogs.deployments.schema import Deployment
from catalogs.io.yaml_files import validate_as
from catalogs.workloads.request_set import RequestSet
from simulator.analysis.metrics import summarise
from simulator.cluster.compiled import compile_deployment
from simulator.cluster.simulate import simulate

#: config.json of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, as far as sizes go.
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
}
#: (engine, mean TPOT, mean ITL), milliseconds: before the pull request, and with asynchronous scheduling.
MEASURED = (("vllm-0.11", 9.91, 28.14), ("vllm", 9.57, 27.17))

#: Requests of the run, and tokens of each prompt and output.
N, INPUT_TOKENS, OUTPUT_TOKENS = 20, 100, 256


def main() -> None:
    requests = RequestSet(np.zeros(N), np.full(N, INPUT_TOKENS), np.full(N, OUTPUT_TOKENS), concurrency=1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(HEAD))
        for engine, tpot_ms, itl_ms in MEASURED:
            speculative = {
                "method": "eagle3",
                "model": folder,
                "num_speculative_tokens": 4,
                "acceptance_length": itl_ms / tpot_ms,
            }
            told = {"model": "llama3.1-8b", "engine": engine, "hardware": "l40s", "max_model_len": 2048}
            deployment = validate_as(Deployment, told | {"speculative": speculative}, "deployment")
            found = summarise(simulate(compile_deployment(deployment), requests))["metrics"]
            mine = [1e3 * found[key]["mean"] for key in ("tpot_s", "itl_s")]
            print(f"{engine:10} TPOT {mine[0]:6.2f} ms, measured {tpot_ms:6.2f}; ITL {mine[1]:6.2f}, {itl_ms:6.2f}")


if __name__ == "__main__":
    main()
