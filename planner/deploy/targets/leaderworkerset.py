"""LeaderWorkerSet: replicas that may span nodes, one pod for each node (leaderworkerset.x-k8s.io/v1)."""

from __future__ import annotations

from typing import Final

from catalogs.errors import InputError
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets import pods

_LEADER: Final = "$(LWS_LEADER_ADDRESS)"  # set by the controller in every pod of a group

_INDEX: Final = "$(LWS_WORKER_INDEX)"

_RENDEZVOUS_PORT: Final = 20000


def write(s: Serving) -> DeploymentFiles:
    """Return leaderworkerset.yaml and service.yaml; clients only reach the leaders."""
    leader, worker = ({"app": s.name, "role": role} for role in ("leader", "worker"))
    commands = _command(s, leads=True), _command(s, leads=s.nodes_per_replica == 1)
    template = {
        "size": s.nodes_per_replica,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": leader}, "spec": pods.engine_pod(s, commands[0])},
        "workerTemplate": {"metadata": {"labels": worker}, "spec": pods.engine_pod(s, commands[1], serves=False)},
    }
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": s.name},
        "spec": {"replicas": s.replicas, "leaderWorkerTemplate": template},
    }
    files = {"leaderworkerset.yaml": to_yaml(group), "service.yaml": to_yaml(*pods.client_services(s, leader))}
    steps = [pods.secret_step(), "kubectl apply -f leaderworkerset.yaml -f service.yaml"]
    ready = f"--for=jsonpath='{{.status.readyReplicas}}'={s.replicas}"
    steps += [f"kubectl wait leaderworkerset/{s.name} {ready} --timeout=60m", pods.forward_step(s.name)]
    return DeploymentFiles(files, steps, [*pods.requirements(s), "needs the LeaderWorkerSet operator in the cluster"])


def _command(s: Serving, leads: bool) -> list[str]:
    """Return the command of a pod; the flags after the address connect the pods of a replica on several nodes."""
    nodes, layout, command = str(s.nodes_per_replica), s.resolved.layout, s.listening().words
    if s.nodes_per_replica == 1:
        return command
    if s.family == "sglang":
        rendezvous = ["--dist-init-addr", f"{_LEADER}:{_RENDEZVOUS_PORT}"]
        return [*command, "--nnodes", nodes, "--node-rank", _INDEX, *rendezvous]
    if s.family != "vllm":
        raise InputError("this engine's replica stays on one node", s.family, "vllm or sglang")
    quiet = [] if leads else ["--headless"]
    if layout.data_parallel == 1:  # one executor over all nodes
        return [*command, "--nnodes", nodes, "--node-rank", _INDEX, "--master-addr", _LEADER, *quiet]
    local, odd = divmod(layout.data_parallel, s.nodes_per_replica)
    if odd:
        rule = "data-parallel ranks of a replica that spans nodes must fill each node evenly"
        raise InputError(rule, f"{layout.words} on {nodes} nodes", f"a multiple of {nodes} ranks")
    if not leads and local > 1:  # the first rank of a node, `local` times its index, is only known in its pod
        rule = "a replica that spans nodes can be started with one data-parallel rank per node"
        raise InputError(rule, f"{local} ranks per node", f"data_parallel: {nodes}")
    start = [] if leads else ["--data-parallel-start-rank", _INDEX]
    ranks = ["--data-parallel-size-local", str(local), "--data-parallel-address", _LEADER]
    return [*command, *ranks, *quiet, *start]
