"""``python -m grbm``, and so ``torchrun -m grbm``."""

import sys

from grbm.cli import main

if __name__ == "__main__":
    sys.exit(main())
