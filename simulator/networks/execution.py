"""How a network is executed: mode, precision, attention backend and the split over accelerators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from catalogs.errors import InputError, nearest_name

#: "eager" launches each operator from Python. "compiled" fuses chains of memory-bound operators, as torch.compile does.
#: "tensorrt" also fuses them into the products and convolutions before them, and launches without Python.
Mode = Literal["eager", "compiled", "tensorrt"]

#: Bytes of one activation element by precision. In fp8, only the factors of products are fp8.
ACTIVATION_BYTES: Final = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2, "int8": 1}

#: Bytes of one weight by precision.
WEIGHT_BYTES: Final = {**ACTIVATION_BYTES, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one job is split over accelerators.

    Attributes:
        ulysses: Ranks that share the sequence, and the heads during attention (all-to-all before and after).
        ring: Ranks that share the sequence and pass keys and values around.
        guidance: Ranks that share the two passes of classifier-free guidance: 1 or 2.
        shard_weights: Whether each rank holds its share of the weights of all stages, gathered layer by layer (FSDP).
    """

    ulysses: int = 1
    ring: int = 1
    guidance: int = 1
    shard_weights: bool = False

    def __post_init__(self) -> None:
        """Check the degrees.

        Raises:
            InputError: A degree is below 1, or guidance is split over more than its two passes.
        """
        for name, value in (("ulysses", self.ulysses), ("ring", self.ring), ("guidance", self.guidance)):
            if value < 1:
                raise InputError(f"{name} is the number of ranks, at least 1", value, "1")
        if self.guidance > 2:
            raise InputError("guidance has two passes, so at most 2 ranks share them", self.guidance, "2")

    @property
    def sequence(self) -> int:
        """Return the number of ranks that share one sequence."""
        return self.ulysses * self.ring

    @property
    def ranks(self) -> int:
        """Return the number of accelerators of one job."""
        return self.sequence * self.guidance


@dataclass(frozen=True, slots=True)
class Execution:
    """One way to execute a network.

    Attributes:
        mode: What launches and fuses the operators.
        precision: The number format of products and activations.
        autocast: Whether torch's autocast chooses the format: norms and softmax then run in fp32.
        attention_backend: The attention kernel; None is the best that was measured on the accelerator.
        parallelism: The split over accelerators.
        power_limit_w: Limit of the board below its own (`nvidia-smi -pl`), which lowers its clock.
        offload: Whether only the weights of the running stage are on the accelerator.
        weight_precision: The number format in which the weights of stages that repeat are kept, and cast from in every
            run (a checkpoint in fp32 under autocast); None: that of products.
        attended: Share of the keys that a query of self-attention attends to in stages that repeat, the mean of the
            layers: below 1 with windows over neighbouring tokens (NATTEN). Their blocks have the rate of dense kernels
            (Generalized Neighborhood Attention, arXiv 2504.16922: windows of whole tiles gain what they skip).
        stage_precision: Number formats of stages that are not repeated and have another one, by the start of their
            name: `(("decoder", "tf32"),)` for a decoder in fp32, whose convolutions torch computes in tf32.
    """

    mode: Mode = "compiled"
    precision: str = "bf16"
    autocast: bool = False
    attention_backend: str | None = None
    parallelism: Parallelism = Parallelism()
    power_limit_w: float | None = None
    offload: bool = False
    weight_precision: str | None = None
    attended: float = 1.0
    stage_precision: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check the names.

        Raises:
            InputError: The mode or a precision is unknown, or the attended share is none.
        """
        if self.mode not in get_args(Mode):
            modes = get_args(Mode)
            raise InputError("unknown execution mode", self.mode, nearest_name(self.mode, modes) or ", ".join(modes))
        others = (precision for _, precision in self.stage_precision)
        for name in (self.precision, self.weight_precision or self.precision, *others):
            if name not in ACTIVATION_BYTES:
                raise InputError("unknown precision", name, nearest_name(name, ACTIVATION_BYTES))
        if not 0.0 < self.attended <= 1.0:
            raise InputError("the attended share of keys is above 0 and at most 1", self.attended, "1")

    @property
    def activation_bytes(self) -> int:
        """Return the bytes of one activation element."""
        return ACTIVATION_BYTES[self.precision]

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of one weight of a stage that repeats."""
        return WEIGHT_BYTES[self.weight_precision or self.precision]
