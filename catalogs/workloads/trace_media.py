"""The columns `images`, `videos` and `audio` of a trace: the sizes of the items, and which of them are the same.

A cell holds sizes in the order of the prompt, or a JSON list of such texts: images as `1024x768;640x480`, videos with
their sampled frames as `640x360x32`, audio in seconds as `12.5s`. A size may be followed by the hash of the item,
`1024x768#8f3a`: items with equal hashes are one item, which an engine encodes once while it is in the encoder cache.
Items without a hash are all different. The input tokens of such a trace are those of the text, since every model makes
its own number of tokens of an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from catalogs.errors import InputError
from catalogs.models.media_items import MediaItem
from catalogs.workloads.media import RequestMedia
from catalogs.workloads.media_blocks import MOST_ITEMS, parse_item
from catalogs.workloads.service_classes import is_empty

#: The names of the columns, in the order of prompts, each with a valid cell.
MEDIA_COLUMNS: Final[Mapping[str, str]] = {
    "images": "1024x768;640x480",
    "videos": "640x360x32",
    "audio": "12.5s",
}


def trace_media(columns: Mapping[str, Sequence[Any]], where: str) -> RequestMedia | None:
    """Return the items in the columns of a trace; None if it has none.

    Raises:
        InputError: A cell holds no sizes, a request has too many items, or one hash has two sizes.
    """
    found = [_of_column(name, columns[name], where) for name in MEDIA_COLUMNS if name in columns]
    given = [media for media in found if media is not None]
    return given[0].joined(given[1:]) if given else None


def _of_column(column: str, cells: Sequence[Any], where: str) -> RequestMedia | None:
    counts: list[int] = []
    kinds: list[int] = []
    contents: list[int] = []
    sizes: dict[MediaItem, int] = {}
    hashes: dict[str, tuple[int, int]] = {}  # (content, size) of each hash
    for row, cell in enumerate(cells, 1):
        texts = _texts(column, cell, row, where)
        if len(texts) > MOST_ITEMS:
            rule = f"{where}: a request has at most {MOST_ITEMS:,} {column}; row {row} has more"
            raise InputError(rule, len(texts), str(MOST_ITEMS))
        counts.append(len(texts))
        for text in texts:
            size, mark, name = text.partition("#")
            kind = sizes.setdefault(_item(column, size, row, where), len(sizes))
            content, known = hashes.setdefault(name, (len(contents), kind)) if mark else (len(contents), kind)
            if known != kind:
                raise InputError(f"{where}: the {column} of row {row} have the hash of an item of another size", text)
            kinds.append(kind)
            contents.append(content)
    if not contents:
        return None
    n = np.array(counts, dtype=np.int64)
    own = np.array(kinds, dtype=np.int64), np.array(contents, dtype=np.int64)
    return RequestMedia(n, np.cumsum(n) - n, np.zeros_like(n), *own, tuple(sizes), repeats=bool(hashes))


def _texts(column: str, cell: Any, row: int, where: str) -> list[str]:
    if isinstance(cell, list | tuple) and all(isinstance(item, str) for item in cell):
        return list(cell)
    if is_empty(cell):
        return []
    if not isinstance(cell, str):
        raise InputError(f"{where}: {column} of row {row} must be sizes", cell, MEDIA_COLUMNS[column])
    return [text for text in cell.split(";") if text.strip()]


def _item(column: str, text: str, row: int, where: str) -> MediaItem:
    valid = MEDIA_COLUMNS[column].partition(";")[0]
    try:
        found = parse_item(text)
    except InputError as error:
        raise InputError(f"{where}: {column} of row {row}: {error.rule}", text, valid) from None
    if found.modality != parse_item(valid).modality:
        raise InputError(f"{where}: {column} of row {row} have the size of {found.modality}", text, valid)
    return found
