"""Templates taken apart: what the YAML and chat templates say, before any row is rendered."""
