"""LeaderWorkerSet: replicas that may span nodes, one pod for each node (leaderworkerset.x-k8s.io/v1)."""

from __future__ import annotations

from typing import Final

from catalogs.errors import InputError
from planner.deploy.files import DeploymentFiles, to_yaml
from planner.deploy.serving import Serving
from planner.deploy.targets import autoscaling, disaggregation, pods
from planner.deploy.targets.pods import Json

_LEADER: Final = "$(LWS_LEADER_ADDRESS)"  # set by the controller in every pod of a group

_INDEX: Final = "$(LWS_WORKER_INDEX)"

#: Port on which the pods of a group find each other.
_RENDEZVOUS_PORT: Final = 20000


def write(*pools: Serving) -> DeploymentFiles:
    """Return leaderworkerset.yaml, service.yaml and the file of the weights; clients only reach the leaders."""
    s, disaggregated, found = pools[-1], len(pools) > 1, disaggregation.names(pools)
    groups = [_group(pool, name, disaggregated) for pool, name in zip(pools, found, strict=True)]
    services = disaggregation.router(pools, found)
    if not disaggregated:
        services = pods.client_services(s, {"app": s.name, "role": "leader"})
    files = {"leaderworkerset.yaml": to_yaml(*groups), "service.yaml": to_yaml(*services)}
    steps = [pods.secret_step()]
    if pods.keeps_weights(s):
        files[pods.WEIGHTS_FILE] = to_yaml(*pods.weights(s, sum(p.replicas * p.nodes_per_replica for p in pools)))
        steps += pods.weights_steps(s)
    steps += ["kubectl apply -f leaderworkerset.yaml -f service.yaml"]
    for pool, name in zip(pools, found, strict=True):
        ready = f"--for=jsonpath='{{.status.readyReplicas}}'={pool.replicas}"
        steps.append(f"kubectl wait leaderworkerset/{name} {ready} --timeout=60m")
    notes = [*pods.requirements(s), "needs the LeaderWorkerSet operator in the cluster"]
    leaders = [{"app": name, "role": "leader"} for name in found]
    scaled = [] if disaggregated else autoscaling.autoscaled(pools, groups, leaders)
    return disaggregation.finished(pools, files, steps, notes, scaled)


def _group(s: Serving, name: str, disaggregated: bool) -> Json:
    """Return the LeaderWorkerSet of one kind of replica."""
    leader, worker = ({"app": name, "role": role} for role in ("leader", "worker"))
    commands = _command(s, leads=True), _command(s, leads=s.nodes_per_replica == 1)
    pod = pods.engine_pod(s, commands[0])
    template = {
        "size": s.nodes_per_replica,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {
            "metadata": {"labels": leader},
            "spec": disaggregation.connected(s, pod) if disaggregated else pod,
        },
        "workerTemplate": {"metadata": {"labels": worker}, "spec": pods.engine_pod(s, commands[1], serves=False)},
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": s.replicas, "leaderWorkerTemplate": template},
    }


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
