"""LeaderWorkerSet: replicas that may span nodes, one pod for each node (leaderworkerset.x-k8s.io/v1)."""

from __future__ import annotations

from typing import Any, Final

from catalogs.errors import InputError
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets.kubernetes import notes
from planner.deploy.targets.pods import engine_container, engine_pod, forward_step, front, secret_step

_LEADER: Final = "$(LWS_LEADER_ADDRESS)"  # set by the controller in every pod of a group

_INDEX: Final = "$(LWS_WORKER_INDEX)"

_RENDEZVOUS_PORT: Final = 20000


def write(s: Serving) -> DeploymentFiles:
    """leaderworkerset.yaml and service.yaml; clients reach leaders only."""
    leader = {"app": s.name, "role": "leader"}
    template: dict[str, Any] = {"size": s.nodes_per_replica, "restartPolicy": "RecreateGroupOnPodRestart"}
    template["leaderTemplate"] = _pod(s, _command(s, leads=True), leader, serves=True)
    workers = {"app": s.name, "role": "worker"}
    template["workerTemplate"] = _pod(s, _command(s, leads=s.nodes_per_replica == 1), workers, serves=False)
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": s.name},
        "spec": {"replicas": s.replicas, "leaderWorkerTemplate": template},
    }
    files = {"leaderworkerset.yaml": to_yaml(group), "service.yaml": to_yaml(*front(s, leader))}
    steps = [secret_step(), "kubectl apply -f leaderworkerset.yaml -f service.yaml"]
    ready = f"--for=jsonpath='{{.status.readyReplicas}}'={s.replicas}"
    steps += [f"kubectl wait leaderworkerset/{s.name} {ready} --timeout=60m", forward_step(s.name)]
    return DeploymentFiles(
        files, steps, "http://localhost:8000", [*notes(s), "needs the LeaderWorkerSet operator in the cluster"]
    )


def _pod(s: Serving, command: list[str], labels: dict[str, str], serves: bool) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": engine_pod(s, engine_container(s, command, serves))}


def _command(s: Serving, leads: bool) -> list[str]:
    """One rank group of a replica; on several nodes, how they find each other."""
    if s.nodes_per_replica == 1:
        return s.listening().words
    if s.family == "sglang":
        meeting = ["--dist-init-addr", f"{_LEADER}:{_RENDEZVOUS_PORT}"]
        return [*s.listening().words, "--nnodes", str(s.nodes_per_replica), "--node-rank", _INDEX, *meeting]
    if s.family != "vllm":
        raise InputError("this engine's replica stays on one node", s.family, "vllm or sglang")
    return [*s.listening().words, *_ranks(s, leads)]


def _ranks(s: Serving, leads: bool) -> list[str]:
    """vLLM: one executor over all nodes, or where each node holds whole data-parallel ranks, ranks of its own."""
    layout, nodes = s.resolved.layout, s.nodes_per_replica
    quiet = [] if leads else ["--headless"]
    if layout.data_parallel == 1:
        return ["--nnodes", str(nodes), "--node-rank", _INDEX, "--master-addr", _LEADER, *quiet]
    if layout.data_parallel % nodes:
        rule = "data-parallel ranks of a replica that spans nodes fill each node evenly"
        raise InputError(rule, f"{layout.words} on {nodes} nodes", f"a multiple of {nodes} ranks")
    local = layout.data_parallel // nodes
    found = ["--data-parallel-size-local", str(local), "--data-parallel-address", _LEADER, *quiet]
    if leads:
        return found
    if local == 1:  # the first rank of a node is `local` times its index, which is only known in its pod
        return [*found, "--data-parallel-start-rank", _INDEX]
    rule = "one data-parallel rank a node can be written for a replica that spans nodes"
    raise InputError(rule, f"{local} ranks a node", f"data_parallel: {nodes}")
