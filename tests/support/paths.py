"""Where the repository and the files of the tests are."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
EXAMPLES = ROOT / "examples"
QUICKSTART = ROOT / "tokenloom" / "pipelines" / "quickstart.yaml"
CHAT_TEMPLATES = TESTS / "support" / "chat_templates"
SWEEP_TEMPLATES = TESTS / "support" / "sweep_templates"
FAMILY_TEMPLATES = TESTS / "support" / "family_templates"
TOKENIZER_MODELS = TESTS / "support" / "tokenizer_models"
