"""A/B reports: the outputs and end states of two runs, compared in Spark."""

from penstock_spark.ab.command import run
from penstock_spark.ab.comparison import Comparison, compare
from penstock_spark.ab.figures import figures
from penstock_spark.ab.model import AbReport, Compared, read
from penstock_spark.ab.page import page
from penstock_spark.ab.reporting import Wishes, compared, report, write
from penstock_spark.ab.table import table

__all__ = [
    "AbReport",
    "Compared",
    "Comparison",
    "Wishes",
    "compare",
    "compared",
    "figures",
    "page",
    "read",
    "report",
    "run",
    "table",
    "write",
]
