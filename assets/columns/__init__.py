"""The columns stage: raw rows in one canonical form.

In order: `mapping` resolves which columns each role is made from, with `source_expressions` (the syntax) and
`described_types` (the columns' types); `canonical` converts the rows to one of `forms`; `text_values` evaluates source
expressions; `messages` builds conversations from lists of messages, `json_conversations` or `transcripts`, with
`tool_calls`; `preference` builds pairs and KTO rows; `rejected_rows` rejects rows that do not fit, such as those with
an empty answer; `contract` checks the stage's output.
"""
