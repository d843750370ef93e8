"""Sessions of agents: what a tool recorded, event by event, as conversations in OpenAI's shape.

A file is one record and becomes rows: the conversation, and those of sub-agents and after compactions, which name their
parent. Words that the model did not write are never marked as trained.
"""
