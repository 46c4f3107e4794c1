"""What tokenising a prompt costs on one core: the term `request_us_per_input_token` of the engine profiles.

    pip install tokenizers && python benchmarks/tokenize_speed.py

Trains a 32,000-entry byte-level BPE on the text of the installed Python's own sources and encodes what it has not seen,
and texts of random tokens, which load generators with a "random" data set send.
"""

from __future__ import annotations

import os
import random
import sysconfig
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

#: Files that the tokeniser is not trained on, words of its vocabulary, and repeats of each measurement.
HELD_OUT_FILES, VOCABULARY, REPEATS = 300, 32_000, 100


def main() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    random.Random(0).shuffle(sources)
    texts = [f.read_text(errors="ignore") for f in sources[:3000]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False)
    tokenizer.train_from_iterator(texts[:-HELD_OUT_FILES], trainer)
    held_out, draw = "".join(texts[-HELD_OUT_FILES:]), random.Random(0)

    def cut(size: int) -> str:
        start = draw.randrange(len(held_out) - size)
        return held_out[start : start + size]

    def noise(tokens: int) -> str:
        return str(tokenizer.decode([draw.randrange(300, VOCABULARY) for _ in range(tokens)]))

    cases = {"text of 3,000 characters": lambda: cut(3000), "text of 36,000 characters": lambda: cut(36_000)}
    cases |= {"900 random tokens": lambda: noise(900), "7,400 random tokens": lambda: noise(7400)}
    for name, make in cases.items():
        seconds = tokens = 0.0
        for _ in range(REPEATS):
            prompt = make()
            start = time.perf_counter()
            tokens += len(tokenizer.encode(prompt).ids)
            seconds += time.perf_counter() - start
        print(f"{name:28} {seconds / tokens * 1e6:5.2f} us per token")


if __name__ == "__main__":
    main()
