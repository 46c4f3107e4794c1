"""The host's time of a decode step of `generate` of transformers, from a model so small that its kernels take no time.

The model is of the user's class. A step runs the Python of its modules, the launches of their kernels, the growth of
the cache, and the loop of `generate` around them (inputs of the step, logits processors, stopping criteria). It has a
part for each layer and a constant one, so models of two depths are measured.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from calibration.profile.kernels.inputs import Unavailable
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Work
from calibration.profile.session.shape import Shape

#: Start of the kind of these shapes; the class of the model follows.
GENERATE: Final = "generate "

#: Layers of the two models of which the time of a step is measured: a line through both has a part for each layer and a
#: constant one.
DEPTHS: Final = (2, 6)

#: Tokens of one generation, over which its time is divided.
STEPS: Final = 16

#: Sizes of the small model, by the names that configurations of transformers have for them.
SMALL: Final = {
    **dict.fromkeys(("d_model", "hidden_size"), 64),
    **dict.fromkeys(("d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size"), 64),
    **dict.fromkeys(("num_heads", "encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"), 4),
    "d_kv": 16,
    "vocab_size": 512,
}

#: Names of the numbers of layers.
LAYERS: Final = ("num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "num_hidden_layers")


def shapes(architecture: str) -> list[Shape]:
    """Return the shapes of a class of transformers, such as "T5ForConditionalGeneration": one for each depth."""
    return [Shape.of("host_launch", kind=GENERATE + architecture, kernels=layers) for layers in DEPTHS]


def work(shape: Shape, device: ProfiledDevice) -> Work:
    """Return a generation of STEPS tokens after a prompt of one token, which is timed per token.

    Raises:
        Unavailable: If transformers is not installed or has no such class.
    """
    model = _model(str(shape["kind"]).removeprefix(GENERATE), int(shape["kernels"]), device)
    prompt = device.torch.full((1, 1), 7, device=device.kind)
    mask = device.torch.ones_like(prompt)
    options = {"max_new_tokens": STEPS, "do_sample": False, "num_beams": 1, "use_cache": True}

    def generation() -> object:
        return model.generate(prompt, attention_mask=mask, **options)

    return Work([generation], "generate of transformers", STEPS, graph=False)


def _model(architecture: str, layers: int, device: ProfiledDevice) -> Any:
    """Return a small model of a class, whose generation ends at no token.

    Raises:
        Unavailable: If transformers is not installed or has no such class.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
        maker = getattr(transformers, architecture)
    except (ImportError, AttributeError):
        raise Unavailable(f"transformers with {architecture} is not installed") from None
    usual = maker.config_class()
    sizes = {name: size for name, size in SMALL.items() if hasattr(usual, name)}
    sizes |= {name: layers for name in LAYERS if hasattr(usual, name)}
    model = maker(maker.config_class(**sizes)).to(device.kind, device.sixteen_bit(device.activation)).eval()
    settings = model.generation_config
    for name in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"):
        setattr(settings, name, None)
    settings.pad_token_id = settings.decoder_start_token_id = settings.bos_token_id = 0
    return model
