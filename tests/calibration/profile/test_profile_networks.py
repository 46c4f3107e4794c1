"""The shapes and kernels of networks: what is measured of a user's network, and that every kernel of one runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from calibration.operators.network_operators import network_operator
from calibration.operators.operators import Streaming
from calibration.operators.roofline import roofline_s
from calibration.profile.kernels.registry import SHARES
from calibration.profile.local_run import split_models
from calibration.profile.session.shape import FIT, HELD_OUT, Shape
from calibration.profile.shapes.network_shapes import network_grid, user_network_shapes
from calibration.profile.shapes.queue import deduplicated
from calibration.profile.shapes.size_limits import CPU, CUDA
from catalogs.errors import InputError
from catalogs.hardware.catalog import parse_hardware
from catalogs.networks.files import load_network
from tests.calibration.roofline_measurer import UNIT

#: Networks that together have every memory-bound kernel of the catalog but for some of detectors.
NAMES = (
    *("resnet50", "bert-base", "t5-small-encoder", "sam2.1-tiny", "mobilenetv3_large_100"),
    *("swin_base_patch4_window7_224", "wan2.1-t2v-1.3b", "stable-diffusion-xl", "whisper-tiny-encoder"),
    "rt-detr-r50",
)

FAMILIES = {"matmul", "convolution", "noncausal_attention", "streaming", "host_launch"}


def test_a_users_network_is_measured_at_its_own_operators() -> None:
    network = load_network("resnet50")
    found = user_network_shapes([network], CPU, ("fp32",), UNIT)
    shapes = deduplicated([*found.major, *found.minor])
    fitted = {s.operator for s in shapes if s.role == FIT}
    for batch in CPU.network_batches:
        (stage,) = network.at({"batch": batch}, 4)
        assert {network_operator(op, "fp32") for op in stage.operators} <= fitted
    held = [s for s in shapes if s.role == HELD_OUT]
    assert held
    assert not {s.operator for s in held} & fitted
    assert {s.family for s in shapes} == {"matmul", "convolution", "streaming", "host_launch"}


@pytest.mark.parametrize("name", ["resnet50", "t5-small-encoder"])
def test_what_is_measured_first_is_nearly_all_of_a_pass(name: str) -> None:
    network = load_network(name)
    found = user_network_shapes([network], replace(CPU, network_batches=(2, 4)), ("fp32",), UNIT)
    first, later = ({s.operator for s in of if s.role == FIT} for of in (found.major, found.minor))
    assert later - first
    for batch in (2, 4):
        (stage,) = network.at({"batch": batch}, 4)
        sized = [(op, network_operator(op, "fp32")) for op in stage.operators]
        seconds = [(op in first, run.times * float(roofline_s(op, UNIT))) for run, op in sized if op is not None]
        assert sum(s for is_first, s in seconds if is_first) > 0.95 * sum(s for _, s in seconds)


@pytest.mark.parametrize(("limits", "dtype"), [(CPU, "fp32"), (CUDA, "bf16")])
def test_the_grid_covers_every_family_and_its_held_out_shapes_are_others(limits, dtype) -> None:  # type: ignore[no-untyped-def]
    shapes = deduplicated(network_grid(limits, dtype))
    assert {s.family for s in shapes} == FAMILIES
    assert all(s.queue in SHARES for s in shapes)
    assert all(s.roofline_s(UNIT) > 0 for s in shapes if s.family != "host_launch")
    assert [s.key for s in shapes] == [s.key for s in deduplicated(network_grid(limits, dtype))]
    held = {s.fields for s in shapes if s.role == HELD_OUT}
    assert len(held) >= 20
    assert not held & {s.fields for s in shapes if s.role == FIT}


def test_models_and_networks_are_told_apart_by_name_and_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text((Path(load_file("resnet50"))).read_text())
    models, networks = split_models(["qwen2.5-0.5b", "bert-base", str(file)])
    assert [m.name for m in models] == ["qwen2.5-0.5b"]
    assert [n.name for n in networks] == ["bert-base", "resnet50"]
    with pytest.raises(InputError):
        split_models(["bert-bass"])


def load_file(name: str) -> str:
    from catalogs.networks.files import FOLDER

    return str(FOLDER / f"{name}.yaml")


def kernels_of_the_catalog() -> Iterator[Streaming]:
    """Each memory-bound kernel of the shipped networks, as small as possible."""
    known = set()
    for name in NAMES:
        for stage in load_network(name).at(None, 4):
            for op in stage.operators:
                found = network_operator(op, "fp32")
                if isinstance(found, Streaming) and (key := (found.kind, found.operator)) not in known:
                    known.add(key)
                    factor = 4096 / max(float(found.elements), 4096.0)
                    sizes = {x: round(getattr(found, x) * factor) for x in ("read_bytes", "written_bytes")}
                    yield replace(found, elements=4096, width=min(int(found.width), 64), dtype="fp32", **sizes)


def test_every_kernel_of_the_shipped_networks_runs() -> None:
    """A network with an operator that the profile cannot run would be priced by a neighbour without notice."""
    pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")
    from calibration.profile.kernels.streaming import work
    from calibration.profile.machine.device import open_device

    device = replace(open_device("cpu"), cache_bytes=2**14)
    found = list(kernels_of_the_catalog())
    assert len(found) >= 40
    for op in found:
        shape = Shape.of("streaming", **asdict(op))
        for call in work(shape, device).calls:
            call()


def test_the_smallest_shape_of_each_family_runs() -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")
    from calibration.profile.kernels.registry import WORK
    from calibration.profile.machine.device import open_device

    device = replace(open_device("cpu"), cache_bytes=2**14)
    unit = parse_hardware("epyc-9654").accelerator
    smallest: dict[tuple[str, ...], Shape] = {}
    for shape in network_grid(CPU, "fp32"):
        fields = dict(shape.fields)
        label = (shape.family, *(str(fields.get(x, "")) for x in ("operator", "window", "groups", "kind", "shared")))
        if label not in smallest or shape.bytes(unit) < smallest[label].bytes(unit):
            smallest[label] = shape
    masked = next(s for s in network_grid(CPU, "fp32") if s.family == "noncausal_attention")
    smallest[("masked",)] = Shape.of(masked.family, **{**dict(masked.fields), "kernel": "sdpa_masked"})
    up = {"batch": 1, "in_channels": 8, "out_channels": 4, "groups": 1, "window": "2x2", "input": "8x8"}
    up |= {"output": "16x16", "stride": "2x2", "dilation": "1x1", "transposed": 1, "dtype": "fp32"}
    smallest[("transposed",)] = Shape.of("convolution", **up)
    for shape in smallest.values():
        WORK[shape.family](shape, device).calls[0]()


def test_a_convolution_has_the_output_that_its_shape_states() -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install '.[calibration]')")
    from calibration.profile.kernels.convolution import work
    from calibration.profile.machine.device import open_device

    device = replace(open_device("cpu"), cache_bytes=2**14)
    for name in ("resnet50", "mobilenetv3_large_100", "sam2_hiera_tiny", "convnext_tiny", "whisper-tiny-encoder"):
        for stage in load_network(name).at(None, 4):
            known = set()
            for sized in stage.operators:
                op = network_operator(sized, "fp32")
                if sized.kind != "convolution" or op in known or sized.flops > 2e8 * sized.times:
                    continue
                known.add(op)
                shape = Shape.of("convolution", **asdict(op))  # type: ignore[arg-type]
                found = work(shape, device).calls[0]()
                stated = (op.batch, op.out_channels, *map(int, op.output.split("x")))  # type: ignore[union-attr]
                assert tuple(found.shape) == stated  # type: ignore[attr-defined]
