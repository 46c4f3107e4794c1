"""The images, videos and audio of requests, and what they become for one model.

A model reads items (`RequestMedia.read_by`): by the rules of its processors, each of them becomes tokens of the prompt
and patches for a tower. Prompts hold their shared prefix first, then the images, the videos and the audio, then the
rest of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from catalogs.arrays import IntArray
from catalogs.errors import InputError
from catalogs.models.catalog import list_models, load_model
from catalogs.models.media_items import MediaItem, MediaLayout, Modality
from catalogs.models.spec import ModelSpec

#: Most sizes that requests are described with.
_NAMED_SIZES: Final = 4

#: The words for several items of a kind.
PLURALS: Final = {"image": "images", "video": "videos", "audio": "audio"}


class PromptItem(NamedTuple):
    """One item of one request, as a model reads it.

    Attributes:
        start: Tokens of the prompt before it.
        layout: What it becomes.
        content: Equal for equal items.
    """

    start: int
    layout: MediaLayout
    content: int

    @property
    def end(self) -> int:
        """Return the tokens of the prompt up to its end."""
        return self.start + self.layout.tokens


@dataclass(frozen=True, slots=True)
class RequestMedia:
    """The images, videos and audio of n requests, m items in all.

    Attributes:
        counts: Items of each request. Shape (n,).
        first: Index of the first item of each request. Shape (n,).
        kinds: Size of each item, as an index in `sizes`. Shape (m,).
        contents: Equal for equal items. Shape (m,).
        sizes: The sizes of items.
        repeats: Whether an item may occur more than once.
        before: Tokens of each prompt before its first item. Shape (n,).
        layouts: What an item of each size becomes for the model that reads it; empty before one does.
        model: That model.
    """

    counts: IntArray
    first: IntArray
    before: IntArray
    kinds: IntArray
    contents: IntArray
    sizes: tuple[MediaItem, ...]
    repeats: bool = False
    layouts: tuple[MediaLayout, ...] = ()
    model: str = ""

    def __getitem__(self, rows: Any) -> RequestMedia:
        """Return the items of some requests, by index."""
        return replace(self, counts=self.counts[rows], first=self.first[rows], before=self.before[rows])

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def words(self) -> str:
        """Return the items in words, for example "0.8 per request, 1024x1024, 640x480"."""
        sizes = [item.words for item in self.sizes[:_NAMED_SIZES]]
        more = ", ..." if len(self.sizes) > _NAMED_SIZES else ""
        return f"{float(self.counts.mean()):.3g} per request, {', '.join(sizes)}{more}"

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """Return the kinds of items that requests have."""
        return tuple(dict.fromkeys(item.modality for item in self.sizes))

    @property
    def is_read(self) -> bool:
        """Return whether a model has read the items, so that prompts include their tokens."""
        return bool(self.layouts)

    def joined(self, others: Sequence[RequestMedia]) -> RequestMedia:
        """Return these items with those that other blocks draw for the same requests, each behind those before it."""
        if not others:
            return self
        every = (self, *others)
        owners = np.concatenate([np.repeat(np.arange(len(part)), part.counts) for part in every])
        order = np.argsort(owners, kind="stable")
        kinds: list[IntArray] = []
        contents: list[IntArray] = []
        sizes: list[MediaItem] = []
        free = 0  # the first content that no block before uses
        for part in every:
            kinds.append(part.kinds + len(sizes))
            contents.append(part.contents + free)
            sizes += part.sizes
            free += 1 + int(part.contents.max(initial=-1))
        counts = np.sum([part.counts for part in every], axis=0)
        items = np.concatenate(kinds)[order], np.concatenate(contents)[order], tuple(sizes)
        return RequestMedia(
            counts, np.cumsum(counts) - counts, self.before, *items, any(part.repeats for part in every)
        )

    def read_by(self, model: ModelSpec) -> RequestMedia:
        """Return the items as a model reads them.

        Raises:
            InputError: The model does not read a kind of item, or its processor does not accept a size.
        """
        return replace(self, layouts=layouts_for(model, self.sizes), model=model.name)

    @property
    def tokens(self) -> IntArray:
        """Return the prompt tokens of all items of each request. Shape (n,)."""
        each = np.array([layout.tokens for layout in self.layouts], dtype=np.int64)[self.kinds]
        before = np.concatenate([[0], np.cumsum(each)])
        found: IntArray = before[self.first + self.counts] - before[self.first]
        return found

    @property
    def largest_embeddings(self) -> IntArray:
        """Return the embeddings of the largest item of each request, 0 without items. Shape (n,)."""
        each = np.array([layout.embeddings for layout in self.layouts], dtype=np.int64)[self.kinds]
        found = np.zeros(len(self), dtype=np.int64)
        for place in range(int(self.counts.max(initial=0))):
            some = np.flatnonzero(self.counts > place)
            found[some] = np.maximum(found[some], each[self.first[some] + place])
        return found

    def of_request(self, i: int) -> tuple[PromptItem, ...]:
        """Return the items of request i, in the order of its prompt."""
        found, start, first = [], int(self.before[i]), int(self.first[i])
        for k in range(first, first + int(self.counts[i])):
            layout = self.layouts[int(self.kinds[k])]
            found.append(PromptItem(start, layout, int(self.contents[k])))
            start += layout.tokens
        return tuple(found)


def layouts_for(model: ModelSpec, sizes: Sequence[MediaItem]) -> tuple[MediaLayout, ...]:
    """Return what items of these sizes become for a model.

    Raises:
        InputError: The model does not read a kind of item, or its processor does not accept a size.
    """
    towers = {modality: tower for tower in model.towers for modality in tower.rules.modalities}
    missing = next((item.modality for item in sizes if item.modality not in towers), None)
    if missing is not None:
        readers = [name for name in list_models() if missing in load_model(name).modalities]
        rule = f"the workload sends {PLURALS[missing]}, and the catalog knows no tower of this model that reads them"
        raise InputError(rule, model.name, ", ".join(readers))
    return tuple(towers[item.modality].rules.layout(item) for item in sizes)


def media_block_ids(
    media: RequestMedia, block_tokens: int, prefixes: Sequence[tuple[int, ...]] | None, groups: IntArray
) -> tuple[tuple[int, ...], ...]:
    """Return the ids of the full blocks up to the end of the items of each request.

    Two requests share a block if their prefix and all their items up to its end are the same. Blocks behind the items
    belong to one request.

    Args:
        media: The items, as a model reads them.
        block_tokens: Tokens of a block.
        prefixes: Ids of the full blocks of the shared prefix of each request; None without a prefix.
        groups: The prefix of each request, as a number. Shape (n,).
    """
    free = 1 + max((ids[-1] for ids in prefixes or () if ids), default=-1)
    known: dict[tuple[int, tuple[int, ...], int], int] = {}
    found = []
    for i, group in enumerate(groups.tolist()):
        ids = list(prefixes[i]) if prefixes is not None else []
        seen: tuple[int, ...] = ()
        for item in media.of_request(i) if media.repeats else ():
            seen = (*seen, item.content)
            for block in range(len(ids), item.end // block_tokens):
                ids.append(known.setdefault((group, seen, block), free + len(known)))
        found.append(tuple(ids))
    return tuple(found)
