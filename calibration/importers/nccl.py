"""Import the nccl-tests CSVs of apex_plus: times of collectives (us by KB).

nccl-tests sizes are bytes of the whole tensor (all-gather: gathered; reduce-scatter: before; all-to-all: sent by a
rank). A size of 0 KB is the latency of an empty message and is dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from catalogs.errors import InputError

SOURCE: Final = "nccl-tests from microsoft/apex_plus (MIT)"

#: Folder of nccl-tests CSVs by hardware name of the catalog.
FOLDER_OF: Final = {"h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB", "v100-pcie-16gb": "V100-PCIE-16GB"}

_KIND: Final = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}


def import_tables(tables: Path, hardware: str) -> dict[str, pd.DataFrame]:
    """Return the rows of one node, all of the family "collective".

    Raises:
        InputError: The hardware was not measured.
    """
    if hardware not in FOLDER_OF:
        raise InputError("no nccl-tests results for this hardware", hardware, ", ".join(FOLDER_OF))
    files = {kind: tables / FOLDER_OF[hardware] / f"{stem}.csv" for stem, kind in _KIND.items()}
    raw = pd.concat([pd.read_csv(file).assign(kind=kind) for kind, file in files.items()], ignore_index=True)
    raw = raw[(raw.num_nodes == 1) & (raw["size(kb)"] > 0) & (raw["time(us)"] > 0)].reset_index(drop=True)
    rows = raw[["kind"]].assign(message_bytes=raw["size(kb)"] * 1024.0, ranks=raw.num_gpus_per_node.astype(int))
    seconds = raw["time(us)"] * 1e-6
    return {"collective": rows.assign(graph=True, seconds=seconds, source=SOURCE, kernel="NCCL")}
