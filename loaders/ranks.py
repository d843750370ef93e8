"""Which of how many ranks this process is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def place_among_ranks(
    rank: int | None, world_size: int | None, mesh: DeviceMesh | None = None, mesh_dim: str = "dp"
) -> tuple[int, int]:
    """(rank, world size): as given, else along a dimension of a mesh, else those of `torch.distributed` where it is
    initialized, else (0, 1).

    Raises:
        ValueError: only one of the two is given, or the mesh has no such dimension.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError("give rank and world_size together")
    if mesh is not None:
        if mesh_dim not in (mesh.mesh_dim_names or ()):
            raise ValueError(f"the mesh has no dimension {mesh_dim!r}; it has {', '.join(mesh.mesh_dim_names or ())}")
        return mesh.get_local_rank(mesh_dim), mesh[mesh_dim].size()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
