"""Loops of video models: how often their parts run, against the loops written the long way."""

from __future__ import annotations

from math import ceil

import pytest

from catalogs.networks.files import load_network
from catalogs.networks.polynomials import Polynomial
from catalogs.trace.recipes import shipped_recipes

FRAMES = "frames"

#: Networks of two experts, the shift of their scheduler, and the timestep from which the first one runs.
EXPERTS = [("wan2.2-t2v-a14b", 12, 875)]


@pytest.mark.parametrize(("name", "shift", "boundary"), EXPERTS)
def test_the_experts_share_the_steps_at_the_published_boundary(name: str, shift: int, boundary: int) -> None:
    network = load_network(name)
    denoisers = {stage.name: stage.runs for stage in network.stages if "denoiser" in stage.name}
    for steps in range(1, 121):
        noise = [0.999 * (1 - i / steps) for i in range(steps)]
        timesteps = [int(1000 * shift * s / (1 + (shift - 1) * s)) for s in noise]
        high = sum(t >= boundary for t in timesteps)
        sizes = network.sizes_of({"steps": steps, "guidance": 2})
        runs = {name: count.count(sizes) for name, count in denoisers.items()}
        assert (runs["denoiser_high"], runs["denoiser_low"]) == (2 * high, 2 * (steps - high)), steps


def test_the_runs_of_every_denoiser_name_the_steps() -> None:
    for name, recipe in shipped_recipes().items():
        for key, stage in recipe.stages.items():
            assert ("denoiser" in key) == ("steps" in Polynomial.of(stage.runs).names), (name, key)


@pytest.mark.parametrize("height", [256, 512, 768])
@pytest.mark.parametrize("frames", [5, 65, 129])
def test_the_tiles_of_open_sora_cover_its_video(height: int, frames: int) -> None:
    stages = load_network("open-sora-2.0").at({"height": height, FRAMES: frames})
    tiles = next(stage.runs for stage in stages if stage.name == "decoder")
    places, tile = ((frames - 1) // 4 + 1) * height * 256, 5 * 256 * 256
    assert tiles == ceil(places / tile)


def test_cogvideox_decodes_two_latent_frames_at_a_time() -> None:
    runs = {stage.name: stage.runs for stage in load_network("cogvideox-2b").at()}
    latent = (49 - 1) // 4 + 1
    assert (runs["decoder_first"], runs["decoder"]) == (1, latent // 2 - 1)


#: Networks with the job and the extents of its latent video at which the loop of their decoder is counted.
LOOPS = {
    "wan2.1-t2v-1.3b": ({"height": 256, "width": 256, FRAMES: 9}, (16, 3, 32, 32)),
    "cogvideox-2b": ({}, (16, 13, 60, 90)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_the_parts_of_a_decoder_have_the_flops_of_its_loop(name: str) -> None:
    pytest.importorskip("diffusers")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from catalogs.trace.modules import build_module

    job, extents = LOOPS[name]
    module = build_module(shipped_recipes()[name].stages["decoder"])
    latents = torch.empty(1, *extents, dtype=torch.bfloat16, device="meta")
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        module.decode(latents)
    stages = [stage for stage in load_network(name).at(job) if stage.name.startswith("decoder")]
    assert sum(stage.runs * stage.flops for stage in stages) == pytest.approx(counter.get_total_flops(), rel=1e-3)
