"""The names of networks: every spelling that people use, and the search for the network that a user means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from catalogs.errors import LIKE_NAME, InputError, alike, nearest_name
from catalogs.io.yaml_files import DATA, read_yaml

FOLDER: Final = DATA / "networks"

#: The index of names lies with the networks and is none of them.
NAMES: Final = FOLDER / "names.yaml"

#: Words of a name that say how the weights are stored, not which network it is.
STORAGE_WORDS: Final = frozenset({"diffusers", "hf"})

#: Publishers whose repositories are called `MODEL.TAG`, where the tag says how the weights were trained.
TAGGING_PUBLISHERS: Final = frozenset({"", "timm"})


@dataclass(frozen=True, slots=True)
class NetworkNames:
    """The other names of each network; the first of them with a publisher is its Hugging Face id."""

    others: Mapping[str, tuple[str, ...]]

    def of(self, network: str) -> tuple[str, ...]:
        """Return the other names of a network."""
        return self.others.get(network, ())

    def spellings(self, network: str) -> tuple[str, ...]:
        """Return all names of a network, that of its file first."""
        return (network, *self.of(network))

    def hf_id(self, network: str) -> str | None:
        """Return the Hugging Face id of a network; None if it has none."""
        return next((name for name in self.of(network) if "/" in name), None)

    def find(self, text: str, networks: Iterable[str]) -> str | None:
        """Return which of the networks `text` names; None if it names none.

        An exact name in any case is preferred to one that has other separators or no publisher. A publisher in `text`
        must be one of the network's. Both `timm/resnet50.a1_in1k` and `timm.resnet50` name `resnet50`.

        Raises:
            InputError: The text fits several networks.
        """
        wanted = text.strip().lower()
        if wanted.startswith("timm."):
            wanted = wanted.replace(".", "/", 1)
        spelled = {network: self.spellings(network) for network in networks}
        for network, names in spelled.items():
            if wanted in (name.lower() for name in names):
                return network
        owner, _, model = wanted.rpartition("/")
        candidates = [model, model.partition(".")[0]] if owner in TAGGING_PUBLISHERS else [model]
        for candidate in candidates:
            found = [
                network
                for network, names in spelled.items()
                if plain_name(candidate) in map(plain_name, names) and (not owner or owner in map(_publisher, names))
            ]
            if len(found) > 1:
                raise InputError(f"the name could mean {', '.join(found)}", text, found[0])
            if found:
                return found[0]
        return None

    def nearest(self, text: str, networks: Iterable[str]) -> str | None:
        """Return the network with the most similar name; None if none is similar."""
        networks = list(networks)
        known = {plain_name(name): network for network in networks for name in self.spellings(network)}
        wanted = plain_name(text)
        begins = [known[name] for name in sorted(known) if wanted and name.startswith(wanted)]
        if begins:
            return min(begins, key=len)
        related = {plain_name(name) for names in map(self.spellings, networks) for name in names if alike(text, name)}
        similar = nearest_name(wanted, known, LIKE_NAME) or nearest_name(wanted, related, cutoff=0.55)
        return known[similar] if similar else None


def plain_name(name: str) -> str:
    """Return a name without publisher, case, separators and words for how it is stored.

    For example, "Wan-AI/Wan2.1-T2V-14B-Diffusers" becomes "wan21t2v14b".
    """
    text = name.lower().rsplit("/", 1)[-1]
    for separator in "_ .:":
        text = text.replace(separator, "-")
    return "".join(word for word in text.split("-") if word not in STORAGE_WORDS)


def _publisher(name: str) -> str:
    return name.lower().rpartition("/")[0]


@lru_cache(maxsize=1)
def load_names() -> NetworkNames:
    """Return the index of names, one small file, so that finding a network reads no other."""
    return NetworkNames({network: tuple(others) for network, others in read_yaml(NAMES).items()})
