"""Other tools' own preparation of rows, where their packages can be imported."""
