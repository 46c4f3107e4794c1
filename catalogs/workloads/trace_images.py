"""The column `images` of a trace: the sizes of the images of each request, and which of them are the same image.

A cell holds the sizes in pixels in the order of the prompt, such as `1024x768;640x480`, or a JSON list of such texts. A
size may be followed by the hash of the image, `1024x768#8f3a`: images with equal hashes are one image, which an engine
encodes once while it is in the encoder cache. Images without a hash are all different. The input tokens of such a trace
are those of the text, since every model makes its own number of tokens of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from catalogs.errors import InputError
from catalogs.workloads.images import MOST_IMAGES, RequestImages, parse_resolution
from catalogs.workloads.service_classes import is_empty

#: The name of the column.
IMAGES: Final = "images"


def trace_images(cells: Sequence[Any], where: str) -> RequestImages | None:
    """Return the images in the cells of a column; None if all cells are empty.

    Raises:
        InputError: A cell holds no sizes, a request has too many images, or one hash has two sizes.
    """
    counts: list[int] = []
    kinds: list[int] = []
    contents: list[int] = []
    sizes: dict[tuple[int, int], int] = {}
    hashes: dict[str, tuple[int, int]] = {}  # (content, size) of each hash
    for row, cell in enumerate(cells, 1):
        texts = _texts(cell, row, where)
        if len(texts) > MOST_IMAGES:
            rule = f"{where}: a request has at most {MOST_IMAGES:,} images; row {row} has more"
            raise InputError(rule, len(texts), str(MOST_IMAGES))
        counts.append(len(texts))
        for text in texts:
            size, mark, name = text.partition("#")
            kind = sizes.setdefault(_resolution(size, row, where), len(sizes))
            content, known = hashes.setdefault(name, (len(contents), kind)) if mark else (len(contents), kind)
            if known != kind:
                raise InputError(f"{where}: the image of row {row} has the hash of an image of another size", text)
            kinds.append(kind)
            contents.append(content)
    if not contents:
        return None
    n = np.array(counts, dtype=np.int64)
    own = np.array(kinds, dtype=np.int64), np.array(contents, dtype=np.int64)
    return RequestImages(n, np.cumsum(n) - n, np.zeros_like(n), *own, tuple(sizes), repeats=bool(hashes))


def _texts(cell: Any, row: int, where: str) -> list[str]:
    if isinstance(cell, list | tuple) and all(isinstance(item, str) for item in cell):
        return list(cell)
    if is_empty(cell):
        return []
    if not isinstance(cell, str):
        raise InputError(f"{where}: images of row {row} must be sizes in pixels", cell, "1024x768;640x480")
    return [text for text in cell.split(";") if text.strip()]


def _resolution(text: str, row: int, where: str) -> tuple[int, int]:
    try:
        return parse_resolution(text)
    except InputError as error:
        raise InputError(f"{where}: images of row {row}: {error.rule}", text, "1024x768") from None
