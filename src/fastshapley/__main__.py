"""``python -m fastshapley`` is the command line."""

import sys

from fastshapley.cli import main

sys.exit(main())
