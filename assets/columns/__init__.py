"""The columns stage: raw rows in one canonical form.

In order: `mapping` resolves which columns each role is made from, and `fitting` finds those that cannot be;
`source_expressions` parses and evaluates what a role is made from; `canonical` converts the rows to one of the forms;
`dialects` reads conversations of other shapes; `messages` builds conversations from lists of messages, JSON or
transcripts, `message_objects` from Python's objects, and `dialogue` from prompts and earlier turns; `preference` builds
pairs and KTO rows, `tokens` pre-tokenized ones; `contract` checks the stage's output, and rejects rows that do not fit,
such as those with an empty answer. `unused` names the columns that no role uses.
"""
