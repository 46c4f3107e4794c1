"""The names of models, and the search for the model that a user means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from catalogs.errors import InputError, nearest_in_family
from catalogs.io.yaml_files import DATA, read_yaml

MODELS: Final = DATA / "models"

NAMES: Final = MODELS / "names.yaml"

#: Words in a name that are ignored, since they do not change the shape of the model.
SILENT_WORDS: Final = frozenset({"meta", "instruct", "hf", "chat", "it", "base"})


#: Words of a name that state a kind of model beside language models, and the family of its networks. The names
#: are those of Hugging Face: the tasks feature-extraction, text-ranking and text-to-speech.
KIND_WORDS: Final = {
    "embed": "text embedding",
    "embedding": "text embedding",
    "embeddings": "text embedding",
    "e5": "text embedding",
    "gte": "text embedding",
    "rerank": "text reranking",
    "reranker": "text reranking",
    "tts": "speech synthesis",
}


def stated_kind(name: str) -> str | None:
    """Return the kind of network that a word of a name states; None if no word does."""
    words = re.split(r"[^a-z0-9]+", name.lower().rsplit("/", 1)[-1])
    return next((KIND_WORDS[word] for word in words if word in KIND_WORDS), None)


def normalised_name(name: str) -> str:
    """Return a name without publisher, case, separators and ignored words.

    For example, "meta-llama/Meta-Llama-3.1-8B" becomes "llama3.18b".
    """
    words = name.lower().rsplit("/", 1)[-1].replace("_", "-").replace(" ", "-").split("-")
    return "".join(w for w in words if w not in SILENT_WORDS)


def publisher(name: str) -> str:
    """Return the publisher in a name such as "meta-llama/Meta-Llama-3.1-8B", in lower case, or ""."""
    return name.lower().rsplit("/", 1)[0] if "/" in name else ""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The other names of each alias; the first of them is the Hugging Face id."""

    aliases: Mapping[str, tuple[str, ...]]

    def all_names(self) -> dict[str, str]:
        """Return the alias of every name, as the names are written."""
        return {n: alias for alias, others in self.aliases.items() for n in (alias, *others)}

    def hf_id(self, alias: str) -> str:
        """Return the Hugging Face id of an alias."""
        return self.aliases[alias][0]

    def repository(self, alias: str, text: str) -> str | None:
        """Return the Hugging Face id of an alias that `text` spells in any case; None if it spells none of them."""
        return next((name for name in self.aliases[alias] if "/" in name and name.lower() == text.lower()), None)

    def exact(self, text: str) -> str | None:
        """Return the alias of a name in the catalog, in any case, or None."""
        wanted = text.lower()
        return next((alias for name, alias in self.all_names().items() if name.lower() == wanted), None)

    def similar(self, text: str) -> str:
        """Return the alias of the model that matches `text` without publisher, case and ignored words.

        A publisher in `text` must be one of the model's. Where several models match, an alias of exactly that name is
        chosen.

        Raises:
            InputError: No model matches, or several do.
        """
        wanted, owner = normalised_name(text), publisher(text)
        found = {a for n, a in self.all_names().items() if normalised_name(n) == wanted}
        if owner:
            found = {a for a in found if owner in map(publisher, self.aliases[a])}
        found = {a for a in found if normalised_name(a) == wanted} or found
        if len(found) == 1:
            return found.pop()
        if found:
            raise InputError(f"model name could mean {', '.join(sorted(found))}", text, sorted(found)[0])
        nearest = self.nearest(text)
        raise InputError(
            "unknown model",
            text,
            nearest,
            hint=None if nearest else "see `catalog list models` and `catalog list networks`",
        )

    def nearest(self, text: str) -> str | None:
        """Return the shortest alias that begins like `text`, else the most similar one; None if none is similar.

        A name that states another kind of model is similar to none.
        """
        if stated_kind(text) is not None:
            return None
        wanted, name_only = normalised_name(text), text.rsplit("/", 1)[-1]
        begins = [a for a in sorted(self.aliases) if wanted and normalised_name(a).startswith(wanted)]
        return min(begins, key=len, default=None) or nearest_in_family(name_only, self.aliases, 0.55)


@lru_cache(maxsize=1)
def load_names() -> ModelNames:
    """Return the index of names, one small file, so that finding a model reads no other entry."""
    return ModelNames({alias: tuple(others) for alias, others in read_yaml(NAMES).items()})
