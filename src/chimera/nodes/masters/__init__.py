"""Masters: web servers that coordinate fits and predictions of workers."""

from chimera.nodes.masters.aggregation_master import AggregationMaster
from chimera.nodes.masters.parameter_server_master import ParameterServerMaster

__all__ = ["AggregationMaster", "ParameterServerMaster"]
