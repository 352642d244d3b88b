"""Lets the tests of this folder import the kit, and starts one cluster of Ray for all of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Environments that test other plugins do not install Ray.
collect_ignore_glob = [] if importlib.util.find_spec("narrowpass_ray") else ["test_*.py"]

os.environ.update(
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    NARROWPASS_RAY_TEST=str(os.getpid()),  # by which tests know their own workers
)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Yield a cluster of two nodes with a CPU each, beside a head that computes nothing."""
    import ray
    import ray_kit
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        found.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=found.address, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(ray_kit)  # workers do not have this folder
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def one_core(cluster: Any) -> Any:
    """Return the cluster, once two nodes are alive: a test may have ended one."""
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    return cluster
