"""Import the nccl-tests CSVs of apex_plus: times of collectives (us by KB).

nccl-tests sizes are bytes of the whole tensor (all-gather: gathered; reduce-scatter: before; all-to-all: sent by a
rank). A size of 0 KB is the latency of an empty message and is dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from catalogs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


NCCL_TESTS_SOURCE: Final = "nccl-tests from microsoft/apex_plus (MIT)"

#: Folder of nccl-tests CSVs by hardware name of the catalog.
NCCL_TESTS_FOLDER: Final = {"h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB", "v100-pcie-16gb": "V100-PCIE-16GB"}

_KIND: Final = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}


def import_nccl_tests(tables: Path, hardware: str) -> pd.DataFrame:
    """Return the collective rows of one node.

    Raises:
        InputError: The hardware was not measured.
    """
    import pandas as pd

    if hardware not in NCCL_TESTS_FOLDER:
        raise InputError("no nccl-tests results for this hardware", hardware, ", ".join(NCCL_TESTS_FOLDER))
    parts = []
    for stem, kind in _KIND.items():
        raw = pd.read_csv(tables / NCCL_TESTS_FOLDER[hardware] / f"{stem}.csv")
        raw = raw[(raw.num_nodes == 1) & (raw["size(kb)"] > 0) & (raw["time(us)"] > 0)]
        rows = pd.DataFrame(
            {
                "kind": kind,
                "message_bytes": raw["size(kb)"] * 1024.0,
                "ranks": raw.num_gpus_per_node.astype(int),
                "graph": True,
                "seconds": raw["time(us)"] * 1e-6,
            }
        )
        parts.append(rows)
    out = pd.concat(parts, ignore_index=True)
    return out.assign(source=NCCL_TESTS_SOURCE, kernel="NCCL")
