"""Where cells are evaluated: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from catalogs.errors import InputError
from planner.search.ray_workers import RayPool, code_digest, join_cluster
from planner.search.workers import ProcessPool, usable_cores

T = TypeVar("T")

R = TypeVar("R")


class CellPool(Protocol):
    """Evaluates the cells of a matrix, in this process or in others."""

    @property
    def n_workers(self) -> int:
        """Return the number of cells that are evaluated at the same time."""

    @property
    def shares_disk(self) -> bool:
        """Return whether the workers can write files of this machine."""

    def map(self, work: Callable[[T], R], tasks: Sequence[T], /) -> list[R]:
        """Return `work(task)` for each task, in order."""


@dataclass(frozen=True, slots=True)
class LocalPool:
    """Worker processes on this machine, each of which evaluates one cell at a time."""

    n_workers: int
    shares_disk: bool = True

    def map(self, work: Callable[[T], R], tasks: Sequence[T], /) -> list[R]:
        """Return `work(task)` for each task, in order."""
        return ProcessPool(self.n_workers).map(work, tasks)


@dataclass(frozen=True, slots=True)
class ClusterPool:
    """A Ray cluster, each CPU of which evaluates one cell at a time.

    Raises:
        InputError: The cluster has no CPU.
    """

    pool: RayPool
    shares_disk: bool = False

    def __post_init__(self) -> None:
        if not self.pool.n_cpus:
            raise InputError("the cluster has no CPU", 0, "--jobs 1 without --distributed")

    @property
    def n_workers(self) -> int:
        """Return the number of CPUs of the cluster."""
        return self.pool.n_cpus

    def map(self, work: Callable[[T], R], tasks: Sequence[T], /) -> list[R]:
        """Return `work(task)` for each task, in order; Ray repeats the tasks of a machine that is lost.

        Raises:
            InputError: A machine of the cluster has another version of the planner.
        """
        ray = self.pool.ray
        remote = ray.remote(num_cpus=1)(_checked)
        return list(ray.get([remote.remote(code_digest(), work, task) for task in tasks]))


def _checked(code: str, work: Callable[[Any], Any], task: Any) -> Any:
    """Return `work(task)` on a machine of the cluster."""
    if code != code_digest():
        raise InputError("a machine of the cluster has another version of the planner", code_digest(), code)
    return work(task)


@contextmanager
def cell_pool(jobs: int | None, address: str | None) -> Iterator[CellPool]:
    """Yield the workers for a matrix.

    Args:
        jobs: Processes of this machine; None for one per usable core.
        address: Address of a Ray cluster; None for this machine.

    Raises:
        InputError: Both are given, or the cluster cannot be joined.
    """
    if address is None:
        yield LocalPool(jobs or usable_cores())
        return
    if jobs is not None:
        raise InputError("--jobs and --distributed exclude each other", jobs, hint="give one of them")
    with join_cluster(address) as joined:
        yield ClusterPool(joined)
