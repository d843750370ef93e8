"""The columns stage: raw rows in one canonical form.

In order: `mapping` resolves which columns each role is made from, with `source_expressions` (the syntax);
`canonical` converts the rows to one of `forms`; `text_values` evaluates source expressions; `messages` builds
conversations from lists of messages, JSON or transcripts, `message_objects` from Python's objects, and `dialogue` from
prompts and earlier turns; `preference` builds pairs and KTO rows; `contract` checks the stage's output, and rejects
rows that do not fit, such as those with an empty answer.
"""
