"""`python -m tddelta` is the command `tddelta`."""

import sys

from tddelta.cli import main

if __name__ == "__main__":
    sys.exit(main())
