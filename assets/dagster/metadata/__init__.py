"""What assets show in Dagster's UI: marked rows, numbers that plot, rejects with places, and where the YAML sets it."""
