"""`python -m hopyard.cli` is the command `hop`."""

from __future__ import annotations

import sys

from hopyard.cli.main import main

sys.exit(main())
