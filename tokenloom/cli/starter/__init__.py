"""What `tokenloom inspect` learns about a source, and the YAML that it writes."""
