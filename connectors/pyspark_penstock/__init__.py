"""Where Spark finds the data source ``penstock``: it looks for modules named ``pyspark_…``."""

from penstock_spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
