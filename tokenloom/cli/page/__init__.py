"""The HTML page of `tokenloom preview`: its contents as a dataclass, and the template that shows them in one file."""
