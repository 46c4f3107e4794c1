"""How long vLLM's n-gram proposer looks for drafts: host seconds by sequences and tokens of each.

    VLLM_PYTHON benchmarks/ngram_lookup.py     # the Python of an environment with vLLM

Random tokens hold no match, so every sequence is read to its end. A step's look-up is fitted as so much for each
sequence and so much for each of its tokens: `ngram_us_per_sequence` and `ngram_ns_per_token` of engine files.
"""

from __future__ import annotations

import time
from types import SimpleNamespace as Settings

import numpy as np

#: Sequences of a batch, and tokens of each.
SEQUENCES, TOKENS = (16, 64, 256), (128, 1024, 4096)

#: Longest sequence in tokens, and the repeats of each lookup.
LONGEST, REPEATS = 8192, 25


def main() -> None:
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer  # not in our environment

    settings = Settings(
        speculative_config=Settings(prompt_lookup_min=2, prompt_lookup_max=4, num_speculative_tokens=4),
        model_config=Settings(max_model_len=LONGEST),
        scheduler_config=Settings(max_num_seqs=max(SEQUENCES)),
        parallel_config=Settings(tensor_parallel_size=1),
    )
    proposer = NgramProposer(settings)
    held = np.random.default_rng(0).integers(0, 128_000, (max(SEQUENCES), LONGEST)).astype(np.int32)
    rows, seconds = [], []
    for n in SEQUENCES:
        for tokens in TOKENS:
            lengths, best = np.full(max(SEQUENCES), tokens, dtype=np.int32), np.inf
            for _ in range(REPEATS):
                started = time.perf_counter()
                proposer.propose(4, [[1]] * n, lengths, held)
                best = min(best, time.perf_counter() - started)
            rows.append((n, n * tokens))
            seconds.append(best)
            print(f"{n:4} sequences of {tokens:5} tokens {1e6 * best:8.0f} us")
    weights = 1.0 / np.array(seconds)[:, None]
    fitted, *_ = np.linalg.lstsq(np.array(rows) * weights, np.ones(len(rows)), rcond=None)
    print(f"{1e6 * fitted[0]:.1f} us per sequence, {1e9 * fitted[1]:.2f} ns per token")


if __name__ == "__main__":
    main()
