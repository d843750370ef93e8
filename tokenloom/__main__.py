"""`python -m tokenloom`: runs the `tokenloom` command."""

import sys

from tokenloom.cli import main

sys.exit(main())
