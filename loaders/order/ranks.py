"""Which of how many ranks this process is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def place_among_ranks(
    rank: int | None, world_size: int | None, mesh: DeviceMesh | None = None, mesh_dim: str | tuple[str, ...] = "dp"
) -> tuple[int, int]:
    """(rank, world size): as given, else along a dimension of a mesh, else those of `torch.distributed` where it is
    initialized, else (0, 1).

    Args:
        mesh_dim: several count as one, the first slowest.

    Raises:
        ValueError: only one of the two is given, there is no such rank, the mesh has no such dimension or not this
            process, or this is one of several processes of torchrun that have not joined.
    """
    if rank is None and world_size is None:
        rank, world_size = _joined() if mesh is None else _place_in_mesh(mesh, mesh_dim)
    if rank is None or world_size is None:
        raise ValueError("give rank and world_size together")
    if not (isinstance(rank, int) and isinstance(world_size, int)):
        raise ValueError(f"rank {rank!r} and world_size {world_size!r} must be integers")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of world_size {world_size}: a rank is at least 0 and less than world_size")
    return rank, world_size


def _joined() -> tuple[int, int]:
    if not torch.distributed.is_available():
        return 0, 1
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_torchelastic_launched() and started > 1:
        raise ValueError(
            f"torchrun started {started} processes, which would all read the same: call "
            "torch.distributed.init_process_group() first, or give rank and world_size"
        )
    return 0, 1


def _place_in_mesh(mesh: DeviceMesh, mesh_dim: str | tuple[str, ...]) -> tuple[int, int]:
    names, place = mesh.mesh_dim_names or (), mesh.get_coordinate()
    if not names:
        raise ValueError("the mesh's dimensions have no names: make it with mesh_dim_names, and name one as mesh_dim")
    if place is None:
        raise ValueError("this process is not in the mesh: give rank and world_size, or make no loader here")
    rank, world_size = 0, 1
    for name in (mesh_dim,) if isinstance(mesh_dim, str) else mesh_dim:
        if name not in names:
            raise ValueError(f"the mesh has no dimension {name!r}; it has {', '.join(names)}: name one as mesh_dim")
        number = names.index(name)
        rank, world_size = rank * mesh.shape[number] + place[number], world_size * mesh.shape[number]
    return rank, world_size
