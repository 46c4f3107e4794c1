"""The regime of a deployment: what is known before a run about how far its simulation may be off.

Two properties of a deployment predict how much simulated and measured runs of other models differ (docs/accuracy.md):
the generation of the accelerator, because kernels of a new generation still change from release to release, and whether
all layers are dense, because the load of experts, latent attention and linear attention depend on kernels and data that
operator tables describe less well. Stated errors are narrower or wider by both (`calibration.accuracy.spread_fit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from catalogs.hardware.specs import Accelerator
    from catalogs.models.spec import ModelSpec

#: Kinds of layers; "" where they are not known.
Layers = Literal["dense", "other", ""]

#: Generations that have cards with other kernels, without HBM. No whole run of these was compared.
_WITH_AND_WITHOUT_HBM: Final = ("hopper", "blackwell")


@dataclass(frozen=True, slots=True)
class Regime:
    """The generation of the accelerators and the kind of layers of a deployment; "" where either is not known.

    Attributes:
        generation: The architecture of the accelerator in the catalog, for example "hopper".
        layers: "dense" if every layer has attention over keys and values of each token and a feed-forward block that
            all tokens use; "other" if any layer has experts, latent attention or linear attention.
    """

    generation: str = ""
    layers: Layers = ""

    @classmethod
    def of(cls, model: ModelSpec, accelerator: Accelerator) -> Regime:
        """Return the regime of a model on an accelerator.

        The generation of MIG slices, and of cards of Hopper and Blackwell without HBM, counts as not known.
        """
        return cls(_generation(accelerator), _layers(model))

    @classmethod
    def read(cls, block: Mapping[str, Any]) -> Regime:
        """Return the regime that a block `stated_error` states; a block without one has an unknown regime."""
        return cls(block.get("generation", ""), block.get("layers", ""))

    @property
    def key(self) -> str:
        """Return the regime as a key of files, for example "hopper dense"; "" where a property is not known."""
        return f"{self.generation} {self.layers}" if self.generation and self.layers else ""

    def in_words(self) -> str:
        """Return the models and accelerators of the regime, for example "dense models on Hopper"."""
        name = self.generation.upper() if any(c.isdigit() for c in self.generation) else self.generation.title()
        other = "models that have experts, latent attention or linear attention"
        return f"{'dense models' if self.layers == 'dense' else other} on {name}"

    def block(self) -> dict[str, str]:
        """Return the known properties as keys of a block `stated_error`."""
        named = {"generation": self.generation, "layers": self.layers}
        return {key: value for key, value in named.items() if value}


#: The regime of a deployment about which nothing is known: the errors of all runs of its engine apply.
UNKNOWN: Final = Regime()


def _generation(accelerator: Accelerator) -> str:
    known = accelerator.has_hbm or accelerator.architecture not in _WITH_AND_WITHOUT_HBM
    return accelerator.architecture if known else ""


def _layers(model: ModelSpec) -> Layers:
    dense = all(group.plain_attention is not None and group.dense_block is not None for group in model.groups)
    return "dense" if dense else "other"
