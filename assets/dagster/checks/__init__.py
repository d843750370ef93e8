"""The checks of a dataset's assets, as functions that know nothing of how Dagster runs them.

- `stage_check`: what a check looks at, and its verdict.
- `of_dataset`: which checks a dataset has.
- One module per check: `contract` of every stage; `template` and `turns` of prompts; `rejects`, `answers`, `drift`,
  `overlap` and `stored` of sequences.
"""

from tokenloom.assets.dagster.checks.of_dataset import stage_checks
from tokenloom.assets.dagster.checks.rejects import rejected
from tokenloom.assets.dagster.checks.stage_check import Checked, StageCheck, Verdict

__all__ = ["Checked", "StageCheck", "Verdict", "rejected", "stage_checks"]
