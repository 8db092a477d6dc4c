"""A Ray cluster of two nodes, told by lines on standard input what to do: kill, restore, slices (four hosts of two
made-up slices of TPUs, of which one has a host that is taken), no slices. It ends with its input.

Prints, as JSON, the cluster's address and that of its job server, and a line after each thing that was done.
"""

import json
import os
import sys
from typing import Any

NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}
HEALTH = {  # how soon a node counts as dead
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


def hosts_of(name: str, *, taken: bool = False) -> list[dict[str, Any]]:
    """Two hosts of a slice v4-16, as Ray describes them; where it is taken the first one has no head to give."""
    labels = {"ray.io/tpu-slice-name": f"slice-{name}"}
    resources = {"TPU": 4, f"slice-{name}": 1}
    head = {} if taken else {"TPU-v4-16-head": 1}
    return [{"resources": {**resources, **head}, "labels": labels}, {"resources": resources, "labels": labels}]


def main() -> None:
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    from ray.cluster_utils import Cluster

    first = {**NODE, "include_dashboard": True, "dashboard_port": 0, "_system_config": HEALTH}
    cluster: Any = Cluster(initialize_head=True, head_node_args=first)
    second: Any = cluster.add_node(**NODE)
    slices: list[Any] = []
    print(json.dumps({"address": cluster.address, "job_server": f"http://{cluster.webui_url}"}), flush=True)
    for line in sys.stdin:
        if line.strip() == "kill" and second is not None:
            cluster.remove_node(second, allow_graceful=False)
            second = None
        if line.strip() == "restore" and second is None:
            second = cluster.add_node(**NODE)
        if line.strip() == "slices":
            slices = [cluster.add_node(**NODE, **host) for host in (*hosts_of("a", taken=True), *hosts_of("b"))]
        if line.strip() == "no slices":
            for node in slices:
                cluster.remove_node(node, allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
