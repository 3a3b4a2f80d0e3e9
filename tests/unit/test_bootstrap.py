"""How ``python scripts/NAME.py`` starts a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_ctrl_c_while_a_command_is_still_being_imported_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    script = "import sys, _bootstrap\nsys.exit(_bootstrap.run('slow_to_import'))\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{ROOT / 'scripts'}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
