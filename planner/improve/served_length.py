"""The context length that a deployment serves, which an improved deployment keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from catalogs.deployments.resolve import resolve_pools
from catalogs.deployments.schema import Deployment
from simulator.cluster.compiled import DeploymentDoesNotFit, fit

#: The key of deployment.yaml that states the length.
LENGTH_KEY: Final = "max_model_len"


def served_length(deployment: Deployment) -> int | None:
    """Return the tokens of the longest sequence that a deployment serves.

    It is the stated length or else the model's, and less where the cache cannot hold the model's. A deployment that
    does not fit in memory has the stated length, or None.

    Raises:
        InputError: The deployment is invalid.
    """
    try:
        resolved, _ = fit(deployment, resolved=resolve_pools(deployment)[-1])
    except DeploymentDoesNotFit:
        return deployment.max_model_len
    return resolved.limits.max_model_len


def length_notes(deployment: Deployment) -> Iterator[str]:
    """Yield which length is kept if the deployment does not state it, and how to allow a shorter one."""
    served = served_length(deployment)
    if deployment.max_model_len is not None or served is None:
        return
    own = resolve_pools(deployment)[-1].limits.max_model_len
    if served < own:
        yield (
            f"the cache of the present deployment holds a sequence of {served:,} tokens, not the {own:,} of the model: "
            f"{served:,} are kept"
        )
        return
    allow = f"add --set {LENGTH_KEY}=N if you need less, so that smaller caches count too"
    yield f"the context length of {served:,} tokens that is served today is kept: {allow}"
