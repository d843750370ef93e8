"""The rank and world size of this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def place_among_ranks(
    rank: int | None, world_size: int | None, mesh: DeviceMesh | None = None, mesh_dim: str | tuple[str, ...] = "dp"
) -> tuple[int, int]:
    """Return (rank, world size): as given, else from a mesh dimension, else from `torch.distributed`, else (0, 1).

    Args:
        rank, world_size: give both or neither.
        mesh: a DeviceMesh with named dimensions.
        mesh_dim: the data-parallel dimension; several are flattened into one, the first varying slowest.

    Raises:
        ValueError: only one of `rank` and `world_size` is given, the rank is out of range, the mesh lacks the dimension
            or this process, or torchrun started several processes that have not called `init_process_group`.
    """
    if rank is None and world_size is None:
        rank, world_size = _joined() if mesh is None else _place_in_mesh(mesh, mesh_dim)
    if rank is None or world_size is None:
        raise ValueError("give rank and world_size together")
    if not (isinstance(rank, int) and isinstance(world_size, int)):
        raise ValueError(f"rank and world_size must be integers, got {rank!r} and {world_size!r}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be at least 0 and less than world_size {world_size}, got {rank}")
    return rank, world_size


def _joined() -> tuple[int, int]:
    if not torch.distributed.is_available():
        return 0, 1
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_torchelastic_launched() and started > 1:
        raise ValueError(
            f"torchrun started {started} processes, which would all read the same rows: call "
            "torch.distributed.init_process_group() first, or give rank and world_size"
        )
    return 0, 1


def _place_in_mesh(mesh: DeviceMesh, mesh_dim: str | tuple[str, ...]) -> tuple[int, int]:
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
        rank, world_size = rank * mesh.shape[number] + place[number], world_size * mesh.shape[number]
    return rank, world_size
