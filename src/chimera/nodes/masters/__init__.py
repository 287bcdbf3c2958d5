"""The masters: web servers that let workers fit and predict together."""

from chimera.nodes.masters.aggregation_master import AggregationMaster
from chimera.nodes.masters.parameter_server_master import ParameterServerMaster

__all__ = ["AggregationMaster", "ParameterServerMaster"]
