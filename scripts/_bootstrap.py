"""Lets ``python scripts/NAME.py`` work from a checkout with any Python: the project's own environment is used.

It has no third-party imports, and does nothing more once the packages can be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(module: str) -> int:
    """Call ``main()`` of ``module``, from the project's virtual environment if this Python lacks what it needs."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    if importlib.util.find_spec("asyncpg") is None or importlib.util.find_spec("msgspec") is None:
        own = ROOT / ".venv" / "bin" / "python"
        if own.exists() and Path(sys.prefix) != own.parent.parent:
            os.execv(own, [str(own), *sys.argv])
        print("error: Hindsight's packages are not installed for this Python; run `make setup` first.", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(module).main())
    except KeyboardInterrupt:  # during the imports; after that the command itself handles it
        return 130
