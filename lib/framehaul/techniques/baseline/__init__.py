"""Measure the server alone: no dataframe is converted, so no client can be faster."""
