"""Bring calibrations of an earlier release to the present format, which has a hash of the facts.

    python tools/seal_bundles.py FOLDER...

Each FOLDER holds bundle.json and arrays.npz. The arrays must match their hash; facts and arrays are left as they are.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from calibration.bundles.files import ARRAYS_NAME, JSON_NAME, SCHEMA_VERSION, facts_hash, read_bundle
from catalogs.errors import InputError
from catalogs.io.output_files import write_json


def seal(folder: Path) -> str:
    """Seal one bundle and return a line that says so.

    Raises:
        InputError: The folder holds no bundle, or a damaged one, which is left as it is.
    """
    path = folder / JSON_NAME
    try:
        document = json.loads(path.read_bytes())
        is_old = document["schema_version"] == 1
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("no calibration bundle here", str(folder)) from None
    if is_old:
        document["schema_version"] = SCHEMA_VERSION
        document["facts_sha256"] = facts_hash(document)
    with TemporaryDirectory() as checked:
        write_json(document, str(Path(checked) / JSON_NAME))
        shutil.copy(folder / ARRAYS_NAME, checked)
        read_bundle(Path(checked))
    write_json(document, str(path))
    return f"{folder}: {'sealed' if is_old else 'sealed before'}"


def main(arguments: Sequence[str]) -> int:
    """Seal the folders of the command line; return 2 and print one line at the first that cannot be."""
    try:
        for folder in arguments:
            print(seal(Path(folder)))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
