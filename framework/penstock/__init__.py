"""Penstock: an exactly-once framework for stateful Kafka microservices."""

from penstock.api import KeyedStream, ProcessedStream, Service, Stream
from penstock.failure import ConfigurationError, PenstockError
from penstock.operator.aggregate import Aggregate
from penstock.operator.context import Context
from penstock.operator.process import KeyedProcess, Process
from penstock.operator.state import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    UnionListState,
    ValueState,
)
from penstock.operator.timers import Timer
from penstock.source.watermark import Watermark

__all__ = [
    "Aggregate",
    "AggregatingState",
    "BroadcastState",
    "ConfigurationError",
    "Context",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "MapState",
    "OperatorListState",
    "PenstockError",
    "Process",
    "ProcessedStream",
    "ReducingState",
    "Service",
    "Stream",
    "Timer",
    "UnionListState",
    "ValueState",
    "Watermark",
]
