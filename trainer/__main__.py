"""`torchrun -m tokenloom.trainer CONFIG`: trains on a built dataset or mixture, on every rank."""

from __future__ import annotations

import argparse
import sys

from tokenloom.config.dataset import load_config
from tokenloom.errors import TokenloomError, missing_package


def main() -> int:
    """Train, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tokenloom.trainer", description=__doc__)
    parser.add_argument("config", metavar="CONFIG", help="YAML file of a built dataset or mixture, with training:")
    parser.add_argument("--resume", action="store_true", help="continue after the last checkpoint")
    parser.add_argument("--steps", metavar="N", type=int, help="number of optimizer steps (default: training.steps)")
    parser.add_argument("--store", metavar="STORE", help="store folder, or s3://bucket/prefix")
    options = parser.parse_args()
    try:
        from tokenloom.trainer.run import train

        train(load_config(options.config), options.store, options.resume, options.steps)
    except TokenloomError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"error: {missing_package(error.name or '', 'training')}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(str(error) or "interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
