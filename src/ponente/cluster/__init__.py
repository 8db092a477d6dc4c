"""Where work runs: resources, launchers, sharded maps; local processes, and Ray in a room of its own."""

from ponente.cluster.context import report_progress
from ponente.cluster.environment import Environment
from ponente.cluster.resources import CpuOnly, GpuConfig, Resources, TpuPodConfig
from ponente.cluster.shards import PoisonShardError, ShardMap, map_shards

__all__ = [
    "CpuOnly",
    "Environment",
    "GpuConfig",
    "PoisonShardError",
    "Resources",
    "ShardMap",
    "TpuPodConfig",
    "map_shards",
    "report_progress",
]
