"""The facts that `tokenloom inspect` collects about a source, and the YAML that it writes."""
