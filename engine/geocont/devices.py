"""Which device a job runs on, and how many workers share it."""

import os

import torch

from geocont.errors import InputError


def resolve(device: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1` or `mps` into a torch device; `auto` takes CUDA, then MPS, then the CPU.

    Raises:
        InputError: the name is not a device, or this machine or this build of torch does not have it.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise InputError(f"--device {device}: not a device", "use auto, cpu, cuda, cuda:1 or mps") from None
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(
                f"--device {device}: torch {torch.__version__} sees no CUDA device here",
                "use --device cpu, or install a CUDA build of torch and check nvidia-smi",
            )
        if (resolved.index or 0) >= torch.cuda.device_count():
            names = ", ".join(f"cuda:{index}" for index in range(torch.cuda.device_count()))
            raise InputError(f"--device {device}: there is no such CUDA device", f"use one of {names}")
    elif resolved.type == "mps":
        if not torch.backends.mps.is_available():
            raise InputError("--device mps: torch sees no Apple GPU here", "use --device cpu")
    elif resolved.type != "cpu":
        raise InputError(f"--device {device}: not supported", "use auto, cpu, cuda, cuda:1 or mps")
    return resolved


def worker_count(device: torch.device) -> int:
    """How many networks train side by side: one a core this process may use on a CPU, one stack on anything else."""
    if device.type != "cpu":
        return 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(allowed, 1)


def describe(device: torch.device) -> str:
    """A short name for the title line: `cpu:2` (cores in use), or `cuda:0 NVIDIA H100`."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"cpu:{worker_count(device)}" if device.type == "cpu" else str(device)
