"""Networks that no library has as one module: an iteration of a loop over frames, a detector's dense part, a 3D U-Net.

A video decoder is a loop over pieces of the video, so that its operators depend on the length. One iteration does not:
a recipe traces the first one and a later one, and `runs` counts the iterations. `prepare` of a recipe names a method
that runs the first iterations unrecorded and returns the arguments of the traced one.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Final

import torch
from diffusers import AutoencoderKLCogVideoX, AutoencoderKLHunyuanVideo, AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_cogvideox import CogVideoXSafeConv3d
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from torchvision.models import resnext50_32x4d
from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

#: Libraries whose versions a network that is traced from these classes states.
LIBRARIES: Final = ("diffusers",)


class WanFrames(AutoencoderKLWan):  # type: ignore[misc]  # diffusers is untyped here
    """The autoencoder of Wan's videos: an iteration is four frames and one latent frame, the first has one frame."""

    def prepare(self, z: torch.Tensor, video: torch.Tensor) -> dict[str, Any]:
        """Return the arguments of an iteration after the second, with which the caches of frames are full."""
        cache: list[torch.Tensor | None] = [None] * self._cached_conv_counts["decoder"]
        x = self.post_quant_conv(z)
        for first in (True, False):
            self.decoder(x, feat_cache=cache, feat_idx=[0], first_chunk=first)
        return {"z": z, "cache": cache, "video": video}

    def iterate(self, z: torch.Tensor, cache: list[torch.Tensor], video: torch.Tensor) -> torch.Tensor:
        """Decode the next latent frame and append its frames to those of the video."""
        frames = self.decoder(self.post_quant_conv(z), feat_cache=cache, feat_idx=[0])
        if self.config.patch_size is not None:
            frames = unpatchify(frames, patch_size=self.config.patch_size)
        return torch.cat([video, torch.clamp(frames, min=-1.0, max=1.0)], 2)

    def prepare_encoder(self, x: torch.Tensor) -> dict[str, Any]:
        """Return the arguments with which the next four frames are encoded."""
        cache: list[torch.Tensor | None] = [None] * self._cached_conv_counts["encoder"]
        for frames in (x[:, :, :1], x):
            self.encoder(frames, feat_cache=cache, feat_idx=[0])
        return {"x": x, "cache": cache}

    def encode_next(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        """Encode the next four frames as one latent frame."""
        latent: torch.Tensor = self.quant_conv(self.encoder(x, feat_cache=cache, feat_idx=[0]))
        return latent


class CogVideoXFrames(AutoencoderKLCogVideoX):  # type: ignore[misc]
    """The decoder of CogVideoX: two latent frames in each iteration, three in the first.

    Convolutions of more than 2 GB run in one piece here.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        for module in self.modules():
            if isinstance(module, CogVideoXSafeConv3d):
                module.forward = MethodType(torch.nn.Conv3d.forward, module)

    def first(self, z: torch.Tensor) -> torch.Tensor:
        """Decode the first three latent frames."""
        frames: torch.Tensor = self.decoder(z)[0]
        return frames

    def prepare(self, z: torch.Tensor, video: torch.Tensor) -> dict[str, Any]:
        """Return the arguments of an iteration after the first."""
        return {"z": z, "cache": self.decoder(torch.cat([z, z[:, :, :1]], 2))[1], "video": video}

    def iterate(self, z: torch.Tensor, cache: dict[str, Any], video: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Decode two latent frames after others, with `video` in memory; the pieces are joined once at the end."""
        frames: torch.Tensor = self.decoder(z, conv_cache=cache)[0]
        return frames


class HunyuanVideoTile(AutoencoderKLHunyuanVideo):  # type: ignore[misc]
    """The decoder of HunyuanVideo, which runs on tiles of at most 256 x 256 pixels and 17 frames."""

    def tile(self, z: torch.Tensor) -> torch.Tensor:
        """Return the frames of one tile of latents."""
        frames: torch.Tensor = self.decoder(self.post_quant_conv(z))
        return frames


class RetinaNet(torch.nn.Module):  # type: ignore[misc]
    """The dense part of MLPerf's RetinaNet: ResNeXt-50 (32x4d), feature pyramid, heads; boxes are not selected."""

    def __init__(self, classes: int = 264, anchors: int = 9) -> None:
        super().__init__()
        extra = LastLevelP6P7(256, 256)
        self.backbone = _resnet_fpn_extractor(resnext50_32x4d(), 5, returned_layers=[2, 3, 4], extra_blocks=extra)
        self.head = RetinaNetHead(256, anchors, classes)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the class scores and box offsets of all anchors."""
        found: dict[str, torch.Tensor] = self.head(list(self.backbone(images).values()))
        return found


class UNet3d(torch.nn.Module):  # type: ignore[misc]
    """MLPerf's 3D U-Net of kidneys and tumours: six levels, of which all but the first halve the image.

    A level has two convolutions of 3 x 3 x 3, each with an instance norm and a ReLU. On the way up, a transposed
    convolution of stride 2 doubles the image, which is joined with that of the same level on the way down.
    """

    def __init__(self, inputs: int = 1, classes: int = 3) -> None:
        super().__init__()
        channels = (32, 64, 128, 256, 320, 320)
        before = (inputs, *channels[:-1])
        steps = (1, *(2 for _ in channels[1:]))
        self.down = torch.nn.ModuleList(
            _two_convolutions(first, own, step) for first, own, step in zip(before, channels, steps, strict=True)
        )
        upwards = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.widen = torch.nn.ModuleList(torch.nn.ConvTranspose3d(low, own, 2, 2) for low, own in upwards)
        self.up = torch.nn.ModuleList(_two_convolutions(2 * own, own, 1) for _, own in upwards)
        self.classify = torch.nn.Conv3d(channels[0], classes, 1)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes for all voxels."""
        levels = []
        for level in self.down:
            volumes = level(volumes)
            levels.append(volumes)
        for widen, level, skipped in zip(self.widen, self.up, reversed(levels[:-1]), strict=True):
            volumes = level(torch.cat([widen(volumes), skipped], 1))
        scores: torch.Tensor = self.classify(volumes)
        return scores


def _two_convolutions(inputs: int, outputs: int, step: int) -> torch.nn.Sequential:
    """Return a level, whose first convolution has the stride; a group norm of single channels is an instance norm."""
    layers: list[torch.nn.Module] = []
    for first, stride in ((inputs, step), (outputs, 1)):
        convolution = torch.nn.Conv3d(first, outputs, 3, stride, padding=1, bias=False)
        layers += [convolution, torch.nn.GroupNorm(outputs, outputs), torch.nn.ReLU(inplace=True)]
    return torch.nn.Sequential(*layers)
