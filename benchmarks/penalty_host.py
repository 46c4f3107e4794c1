"""Host seconds that a repetition, frequency or presence penalty adds to a step of vLLM.

    VLLM_PYTHON benchmarks/penalty_host.py     # the Python of an environment with vLLM

With a penalty, each step copies all outputs so far into one matrix (`apply_all_penalties`). The lengths are uniform up
to twice the mean, as outputs of equal mean length are at a moment of a steady state.
"""

from __future__ import annotations

import random
import time

#: Mean output lengths, sequences of a batch, repeats of each, and words of the vocabulary (Llama 3).
MEANS, SEQUENCES, REPEATS, VOCABULARY = (200, 700), (8, 32, 128, 512), 9, 128_256


def seconds(outputs: list[list[int]]) -> float:
    """Return the least seconds of REPEATS copies."""
    import torch
    from vllm.utils.torch_utils import make_tensor_with_pad  # not in our environment

    best = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        make_tensor_with_pad(outputs, pad=VOCABULARY, device="cpu", dtype=torch.int64, pin_memory=False)
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    draw = random.Random(0)
    for mean in MEANS:
        for n in SEQUENCES:
            outputs = [[draw.randrange(VOCABULARY) for _ in range(draw.randrange(2 * mean))] for _ in range(n)]
            tokens, took_s = sum(map(len, outputs)), seconds(outputs)
            each = f"{1e9 * took_s / tokens:5.1f} ns a token"
            print(f"{n:4} sequences, {mean:4} output tokens so far: {1e3 * took_s:6.2f} ms, {each}")


if __name__ == "__main__":
    main()
