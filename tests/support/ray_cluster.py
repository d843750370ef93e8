"""A Ray cluster of several nodes on this machine, which listens on loopback only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""With the first, nodes and drivers use 127.0.0.1, as on platforms whose firewalls ask. Must be set before Ray is
imported."""

NODE: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """Start two nodes of one CPU each; yields the `Cluster`. Everything ends with the context."""
    import ray
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
