"""What tracing costs: 40 named networks, each in less than 30 s of the processor and 2 GB of memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from catalogs.trace.recipes import shipped_recipes

ROOT = Path(__file__).resolve().parents[3]

NAMED = [
    "sam2.1-tiny",
    "sam2.1-small",
    "sam2.1-base-plus",
    "sam2.1-large",
    "sapiens-0.3b",
    "sapiens-1b",
    "sapiens2-0.4b",
    "sapiens2-1b",
    "open-sora-2.0",
    "wan2.1-t2v-1.3b",
    "wan2.1-t2v-14b",
    "wan2.2-ti2v-5b",
    "wan2.2-t2v-a14b",
    "wan2.1-i2v-14b",
    "hunyuanvideo-13b",
    "cogvideox-2b",
    "cogvideox-5b",
    "cosmos-predict2-2b-text2image",
    "cosmos-predict2-2b-video2world",
    "flux.1-dev",
    "cogvideox1.5-5b",
    "sd3.5-large",
    "stable-diffusion-xl",
    "dinov2-large",
    "vit_large_patch16_dinov3",
    "siglip-so400m-patch14-384",
    "clip-vit-large-patch14",
    "vit_base_patch16_224",
    "resnet50",
    "convnext_base",
    "swin_base_patch4_window7_224",
    "rt-detr-r50",
    "bert-base",
    "bert-large",
    "distilbert",
    "mobilebert",
    "t5-large-encoder",
    "whisper-large-v3-encoder",
    "bge-large-en-v1.5",
    "bge-reranker-v2-m3",
]


def test_forty_networks_are_named() -> None:
    assert len(set(NAMED)) == 40
    assert set(NAMED) <= set(shipped_recipes())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_tracing_stays_within_30_seconds_and_2_gigabytes(name: str) -> None:
    pytest.importorskip("diffusers")
    command = [sys.executable, "tools/trace_networks.py", name, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    found = re.search(r": ([\d.]+) s, ([\d.]+) GB of memory", done.stdout)
    assert found, done.stdout + done.stderr
    seconds, gigabytes = map(float, found.groups())
    assert seconds < 30
    assert gigabytes < 2
