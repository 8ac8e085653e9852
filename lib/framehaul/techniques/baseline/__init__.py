"""What the server alone can do: no dataframe is converted, so no client can be faster."""
