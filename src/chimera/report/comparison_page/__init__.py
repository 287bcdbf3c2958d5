"""The page of a comparison: charts, learning curves, tables."""
