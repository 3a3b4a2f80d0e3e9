"""Is there a GPU that ART can train on? Answered without importing torch unless there is reason to."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/gpus")
_NEEDED = ("torch", "unsloth", "trl", "megatron")  # the last one is imported by ART whether it is used or not


def why_no_gpu() -> str | None:
    """None if the GPU can be used; otherwise why not, as the middle of a sentence."""
    if not _has_nvidia_gpu():
        return "there is no NVIDIA GPU on this machine"
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"there is a GPU, but {', '.join(missing)} is not installed (`pip install .[gpu]`)"
    return None if _torch_sees_it() else "there is a GPU, but the installed torch cannot use it (a CPU build?)"


def _has_nvidia_gpu() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset").strip() in ("", "-1"):
        return False
    try:
        if any(_DRIVER.iterdir()):
            return True
    except OSError:
        pass  # no driver there, or a system that shows it elsewhere
    command = shutil.which("nvidia-smi")
    if command is None:
        return False
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def _torch_sees_it() -> bool:
    import torch

    return bool(torch.cuda.is_available())
