"""Defaults of an engine that depend on the model that it serves and on the accelerator.

Engines choose kernels, the format of the KV cache and other settings by the architecture of a model (SGLang:
`_handle_model_specific_adjustments` in server_args.py). A rule in an engine file names the architectures and states
what changes for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt

from catalogs.io.yaml_files import times
from catalogs.units import GIB

#: How engine files are read: unknown keys and inexact types are refused. Defaults are validated too: the default 0.0 of
#: a required host time is refused, so files must state it.
STRICT: Final = ConfigDict(extra="forbid", strict=True, validate_default=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class ReceiveIntervals:
    """How often a busy engine receives new requests, in decode-only steps (SGLang's scheduler_recv_interval).

    The engine also receives requests after every step with a prompt, and at once when it is idle.
    """

    __pydantic_config__ = STRICT

    steps: PositiveInt
    busy_steps: PositiveInt  # where the engine holds at least `busy_requests`
    busy_requests: PositiveInt

    def interval(self, requests: int) -> int:
        """Return the steps until requests are received again, with `requests` in the engine after this step."""
        return self.busy_steps if requests >= self.busy_requests else self.steps


class Device(Protocol):
    """The properties of an accelerator that a rule compares."""

    @property
    def name(self) -> str:
        """Return the name in the catalog."""
        ...

    @property
    def architecture(self) -> str:
        """Return the generation of the accelerator ("hopper")."""
        ...

    @property
    def memory_bytes(self) -> float:
        """Return the size of the memory, bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What an engine changes for models of some architectures on some accelerators.

    Attributes:
        architectures: Architectures of the models, as in config.json.
        accelerators: Architectures of the accelerators ("hopper"); (): all of them.
        except_accelerators: Names of accelerators to which the rule does not apply.
        min_memory_bytes: The least memory of an accelerator (engine files: `min_memory_gib`).
        fuses_norms: Whether the all-reduce kernel also adds the residual and normalises; None: unchanged.
        kv_dtype: Data type of the KV cache unless the deployment states one; None: unchanged.
        receiving: How often new requests are received; None: unchanged.
        launches_experts_at_once: Whether one operator launches the routing and all kernels of the routed experts;
            None: unchanged.
        max_cudagraph_capture_size: The largest captured batch, in tokens; None: unchanged.
        flashinfer_products: Whether FlashInfer's kernel computes dense products in block-scaled FP8; None: unchanged.
    """

    __pydantic_config__ = STRICT

    architectures: tuple[str, ...]
    accelerators: tuple[str, ...] = ()
    except_accelerators: tuple[str, ...] = ()
    min_memory_bytes: Annotated[NonNegativeFloat, Field(alias="min_memory_gib"), times(GIB)] = 0.0
    fuses_norms: bool | None = None
    kv_dtype: str | None = None
    receiving: ReceiveIntervals | None = None
    launches_experts_at_once: bool | None = None
    max_cudagraph_capture_size: PositiveInt | None = None
    flashinfer_products: bool | None = None

    def holds(self, architecture: str, device: Device) -> bool:
        """Return whether the rule applies to a model of this architecture on this accelerator."""
        known = architecture in self.architectures
        known = known and (not self.accelerators or device.architecture in self.accelerators)
        return known and device.name not in self.except_accelerators and device.memory_bytes >= self.min_memory_bytes
