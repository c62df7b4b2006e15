"""Writing savepoints with Spark: bootstrapped from DataFrames, or made of others."""
