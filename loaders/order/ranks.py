"""This process's place among the ranks that share an epoch: given, or read from `torch.distributed` when needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
}
"""The environment variables with a process's rank and the number of processes. Slurm sets SLURM_NTASKS for a batch
script too, which is one process; those of a step only for what `srun` starts."""


class Ranks:
    """The rank of this process and the number of ranks.

    Those of `torch.distributed` are read whenever they are asked for, so that a loader can be created before
    `init_process_group`. They stay known after `destroy_process_group`.

    Args:
        rank, world_size: both, or neither.
        mesh, mesh_dim: as in `place_in_mesh`, instead of them.

    Raises:
        ValueError: only one of `rank` and `world_size` is given, the rank is out of range, or the mesh lacks the
            dimension or this process.
    """

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        mesh_dim: str | tuple[str, ...] = "dp",
    ):
        if rank is None and world_size is None and mesh is not None:
            rank, world_size = place_in_mesh(mesh, mesh_dim)
        self._given = None if rank is None and world_size is None else _checked(rank, world_size)
        self._known: tuple[int, int] | None = None
        self._refusal: Exception | None = None

    def refuse_several(self, error: Exception) -> None:
        """Raise an error as soon as there are several ranks: now, or when they are known.

        Args:
            error: what is raised.
        """
        self._refusal = error
        self.known()

    def now(self) -> tuple[int, int]:
        """Return (rank, world size).

        Raises:
            ValueError: a launcher started several processes that have not called `init_process_group`.
            Exception: what `refuse_several` was given.
        """
        return self.known() or _of_one_process()

    def known(self) -> tuple[int, int] | None:
        """Return (rank, world size), or None if they are not given and no process group exists yet."""
        if self._given is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            # kept for states that are saved after `destroy_process_group`
            self._known = torch.distributed.get_rank(), torch.distributed.get_world_size()
        place = self._given or self._known
        if self._refusal is not None and place is not None and place[1] > 1:
            raise self._refusal
        return place

    def __getstate__(self) -> dict[str, Any]:
        self.known()  # worker processes that are not forked cannot ask
        return self.__dict__


def _checked(rank: Any, world_size: Any) -> tuple[int, int]:
    if rank is None or world_size is None:
        raise ValueError("give rank and world_size together")
    if not (isinstance(rank, int) and isinstance(world_size, int)):
        raise ValueError(f"rank and world_size must be integers, got {rank!r} and {world_size!r}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and less than world_size {world_size}, got {rank}")
    return rank, world_size


def _of_one_process() -> tuple[int, int]:
    """Return (0, 1); a ValueError if a launcher started several processes."""
    for launcher, (rank, size) in LAUNCHERS.items():
        # a size alone can be left over from a shell inside an allocation
        started = os.environ.get(size, "1") if rank in os.environ else "1"
        if started.isdecimal() and int(started) > 1:
            raise ValueError(
                f"{launcher} started {started} processes, which would all read the same rows: call "
                "torch.distributed.init_process_group() before the first batch, or give rank and world_size"
            )
    return 0, 1


def place_in_mesh(mesh: DeviceMesh, mesh_dim: str | tuple[str, ...]) -> tuple[int, int]:
    """Return (rank, world size) of this process in the data-parallel dimensions of a mesh.

    Args:
        mesh: a DeviceMesh with named dimensions.
        mesh_dim: the data-parallel dimension; several are flattened into one, the first varying slowest.

    Raises:
        ValueError: the mesh lacks the dimension or this process.
    """
    names, place = mesh.mesh_dim_names or (), mesh.get_coordinate()
    if not names:
        raise ValueError("the mesh's dimensions have no names: create it with mesh_dim_names, and pass one as mesh_dim")
    if place is None:
        raise ValueError("this process is not in the mesh: give rank and world_size, or create no loader here")
    rank, world_size = 0, 1
    for name in (mesh_dim,) if isinstance(mesh_dim, str) else mesh_dim:
        if name not in names:
            raise ValueError(f"the mesh has no dimension {name!r}; pass one of {', '.join(names)} as mesh_dim")
        number = names.index(name)
        # row-major over the dimensions, as the mesh numbers its processes
        rank, world_size = rank * mesh.shape[number] + place[number], world_size * mesh.shape[number]
    return rank, world_size
