"""Ranks of a DeviceMesh and of `torch.distributed`, in separate processes: which rows each reads."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from support.gloo_ranks import on_ranks
from support.processes import run
from support.soak import machine
from support.stored_sequences import Written, write_sequences
from tokenloom import open_dataset
from tokenloom.loaders import TokenLoader, batch_digest

Rows = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """53 rows in two chunks: a prime, so no number of ranks divides it."""
    made = write_sequences(tmp_path_factory.mktemp("mesh"), "data", [300, 230], mean=10)
    assert len(made.rows) == 53
    return made


def read(written: Written, **arguments: Any) -> tuple[list[str], Rows]:
    """Return the digests of a rank's batches in two epochs, and the rows of the first, unpadded."""
    loader = TokenLoader(open_dataset("data", store=written.folder), padding="longest", seed=3, **arguments)
    epochs = [list(loader), list(loader)]
    rows = [
        tuple(ids[mask == 1].tolist())
        for batch in epochs[0]
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        if mask.any()
    ]
    return [batch_digest(batch) for epoch in epochs for batch in epoch], rows


def every_row(written: Written) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids.tolist()) for ids, _, _ in written.rows)


def on_mesh(
    written: Written, shape: tuple[int, ...], names: tuple[str, ...], dim: Any, plan: dict[str, int]
) -> tuple[tuple[int, ...], list[list[str]], Rows]:
    """Return this rank's place in the mesh, the batches of all ranks, and this rank's rows."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    digests, rows = read(written, mesh=mesh, mesh_dim=dim, **plan)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, digests)
    return tuple(mesh.get_coordinate() or ()), told, rows


@machine("ranks")
@pytest.mark.parametrize(
    ("shape", "names", "dim"),
    [
        ((2, 2), ("dp", "tp"), "dp"),
        ((2, 2), ("tp", "dp"), "dp"),
        ((2, 1, 2), ("pp", "cp", "replicas"), "replicas"),
        ((2, 2, 1), ("dp_replicate", "dp_shard", "tp"), ("dp_replicate", "dp_shard")),
        ((2, 1, 2), ("dp_replicate", "tp", "dp_shard"), "dp_shard"),
    ],
)
@pytest.mark.parametrize("plan", [{"batch_size": 5}, {"token_budget": 60}])
def test_peers_get_identical_batches_and_data_parallel_ranks_every_row_once(
    written: Written, shape: tuple[int, ...], names: tuple[str, ...], dim: Any, plan: dict[str, int]
) -> None:
    found = on_ranks(4, on_mesh, written, shape, names, dim, plan)
    told = found[0][1]
    assert all(each[1] == told for each in found)
    assert len({len(digests) for digests in told}) == 1
    dims = [names.index(each) for each in ([dim] if isinstance(dim, str) else dim)]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, (place, _, _) in enumerate(found):
        groups.setdefault(tuple(place[each] for each in dims), []).append(rank)
    assert [len(groups), *{len(peers) for peers in groups.values()}] == ([4, 1] if len(dims) == 2 else [2, 2])
    for peers in groups.values():
        assert all(told[peer] == told[peers[0]] for peer in peers)
    first = [peers[0] for _, peers in sorted(groups.items())]
    assert len({digest for rank in first for digest in told[rank]}) > 0.9 * len(first) * len(told[0])
    assert Counter(row for rank in first for row in found[rank][2]) == every_row(written)
    for number, rank in enumerate(first):
        assert told[rank] == read(written, rank=number, world_size=len(first), **plan)[0]


@machine("ranks")
def test_ranks_are_those_of_torch_distributed_unless_they_are_given(written: Written) -> None:
    found = on_ranks(3, read, written)
    assert [digests for digests, _ in found] == [read(written, rank=rank, world_size=3)[0] for rank in range(3)]
    assert Counter(row for _, rows in found for row in rows) == every_row(written)

    def given(written: Written) -> list[str]:
        mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("dp",))
        return read(written, rank=1, world_size=2, mesh=mesh)[0]

    assert on_ranks(3, given, written) == [read(written, rank=1, world_size=2)[0]] * 3


@machine("ranks")
def test_a_mesh_without_the_dimension_is_refused_in_one_sentence(written: Written) -> None:
    def refused(written: Written) -> list[str]:
        named, bare = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tp")), init_device_mesh("cpu", (2,))
        apart = DeviceMesh("cpu", [1], mesh_dim_names=("dp",))
        told = []
        for mesh, dim in ((named, "dp"), (named, ("data", "cp")), (bare, "dp"), (apart, "dp")):
            try:
                read(written, mesh=mesh, mesh_dim=dim)
            except ValueError as error:
                told.append(str(error))
        return told

    first, second = on_ranks(2, refused, written)
    assert second == first[:3]
    assert "no dimension 'dp'; pass one of data, tp" in first[0] and "mesh_dim" in first[0]
    assert "no dimension 'cp'; pass one of data, tp" in first[1]
    assert "no names" in first[2] and "mesh_dim_names" in first[2]
    assert "not in the mesh" in first[3]
    assert not any("\n" in told for told in first)


@pytest.mark.parametrize("given", [(2, 2), (-1, 2), (0, 0), ("0", "2"), (0, None), (None, 1)])
def test_a_rank_that_cannot_be_is_refused_in_one_sentence(written: Written, given: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"^(?=.*\brank\b)(?=.*\bworld_size\b)[^\n.]+$"):
        TokenLoader(open_dataset("data", store=written.folder), rank=given[0], world_size=given[1])


UNJOINED = """
import sys
from tokenloom import open_dataset
from tokenloom.loaders import TokenLoader
dataset = open_dataset("data", store=sys.argv[1])
assert len(TokenLoader(dataset, batch_size=1, rank=0, world_size=1)) == len(dataset)
next(iter(TokenLoader(dataset)))
"""


@machine("ranks")
def test_processes_of_torchrun_that_have_not_joined_do_not_all_read_the_same(written: Written, tmp_path: Path) -> None:
    script = tmp_path / "unjoined.py"
    script.write_text(UNJOINED)
    environment = os.environ | {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    command = [sys.executable, script, written.folder]
    done = run(command, env=environment)
    assert "ValueError: torchrun started 2 processes" in done.stderr
    assert "init_process_group" in done.stderr
    run(command, env=environment | {"WORLD_SIZE": "1"}, check=True)
