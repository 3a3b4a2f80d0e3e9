"""What is installed is what was locked: a file that an index, a mirror or a cache changed is refused.

The Makefile's own rule runs on a lock with one package, offline, from a folder that plays the index.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes_and_there_is_nothing_else_in_the_lock(name: str) -> None:
    text = (ROOT / name).read_text()
    assert len(PIN.findall(text)) > 30
    assert PIN.sub("", text) == ""


def test_only_torch_is_exempt() -> None:
    """Its build differs by platform and index, CPU or GPU."""
    pins = (ROOT / "requirements-torch.lock").read_text().split()
    assert [pin.partition("==")[0] for pin in pins] == ["torch"]
    assert not any(pin.startswith("torch==") for name in LOCKS for pin, _ in PIN.findall((ROOT / name).read_text()))


def wheel(folder: Path, name: str, code: str) -> str:
    """A package of one module in ``folder``; returns the hash of its file."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    target = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return hashlib.sha256(target.read_bytes()).hexdigest()


@pytest.mark.parametrize("lock", LOCKS)
def test_make_refuses_a_package_whose_file_is_another(tmp_path: Path, lock: str) -> None:
    index, project = tmp_path / "index", tmp_path / "project"
    index.mkdir()
    project.mkdir()
    shutil.copy(ROOT / "Makefile", project)
    (project / "pyproject.toml").write_text("")
    for name in (*LOCKS, "requirements-torch.lock"):
        (project / name).write_text("")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    if lock == "requirements-dev.lock":
        subprocess.run([sys.executable, "-m", "venv", project / ".venv"], check=True)

    def make(pin: str) -> str:
        """The Makefile's rule up to the lock; what pip said. What comes after it, the project itself, is not here."""
        (project / lock).write_text(pin)
        if lock == "requirements-dev.lock":
            (project / ".venv" / ".run").touch()
        target = ".venv/.dev" if lock == "requirements-dev.lock" else ".venv/.run"
        command = ["make", target, f"PYTHON={sys.executable}"]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr + (project / ".venv" / f"{target[-3:]}.log").read_text()

    def is_installed() -> bool:
        python = project / ".venv" / "bin" / "python"
        return subprocess.run([python, "-c", "import honest"], capture_output=True, check=False).returncode == 0

    locked = wheel(index, "honest", "SAID = 'what was reviewed'\n")
    changed = wheel(index, "honest", "SAID = 'what was slipped in'\n")
    said = make(f"honest==1.0 \\\n    --hash=sha256:{locked}\n")
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said
    assert not is_installed()
    said = make("honest==1.0\n")
    assert "Hashes are required" in said
    assert not is_installed()
    make(f"honest==1.0 \\\n    --hash=sha256:{changed}\n")
    assert is_installed(), "the same file under its own hash goes through"
