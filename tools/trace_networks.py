"""Rebuild the shipped networks from their recipes: `python tools/trace_networks.py [NAME ...] [--check]`.

Needs the extra `trace`. With --check nothing is written, and a file that differs from its recipe is an error. Each line
states the seconds of the processor, the largest memory of the process so far, and the size of the file.
"""

from __future__ import annotations

import resource
import sys
import time

from catalogs.errors import InputError
from catalogs.networks.files import FOLDER, network_text
from catalogs.trace.recipes import shipped_recipes
from catalogs.trace.trace import trace_network


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    names = [a for a in arguments if a != "--check"] or list(shipped_recipes())
    failed = []
    for name in names:
        start = time.process_time()
        try:
            text = network_text(trace_network(name, shipped_recipes()[name]))
        except InputError as error:
            failed.append(name)
            print(f"{name}: {error}", flush=True)
            continue
        path = FOLDER / f"{name}.yaml"
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            failed.append(name)
            print(f"{name}: the file differs from its recipe", flush=True)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        seconds = time.process_time() - start
        print(f"{name}: {seconds:.1f} s, {memory:.2f} GB of memory, {len(text) / 1e3:.1f} kB", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} networks traced; failed: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
