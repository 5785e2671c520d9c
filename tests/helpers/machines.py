"""Machines that a test plays: what NVIDIA's library, NVML, answers there.

NVIDIA's library is replaced, not the course's code: names and errors are the real module's, only the answers are
another machine's, as its documentation and data sheets have them.
"""

import functools
import os
import sys
import types

import pynvml
import torch

from course_utils.hardware import nvml

# Name, compute capability, number of multiprocessors, GiB.
P100, V100 = ("Tesla P100", (6, 0), 56, 16), ("Tesla V100-SXM2-16GB", (7, 0), 80, 16)
T4, LAPTOP = ("Tesla T4", (7, 5), 40, 15), ("NVIDIA GeForce RTX 3050 Laptop GPU", (8, 6), 16, 4)
A100, H200 = ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80), ("NVIDIA H200", (9, 0), 132, 140)
SLICE_GIB = 16  # of an H200's smallest slice

MACHINES = {
    "no GPU": {"init_error": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND},
    "T4": {"cards": [T4]},
    "4 GB laptop": {"cards": [LAPTOP]},
    "8 A100": {"cards": [A100] * 8, "linked": True},
    "H200": {"cards": [H200]},
    "MIG slice": {"cards": [H200], "slices": {0: 7}},
    "V100": {"cards": [V100], "driver": "580.95.05", "cuda": 13000},  # its last driver
    "driver 550": {"cards": [T4], "driver": "550.54.15", "cuda": 12040},
}


def play(monkeypatch, *cards, **answers):
    """Simulate a machine: one of MACHINES by name, or one with these `cards` in bus order and these `answers`."""
    parts = MACHINES[cards[0]] if cards and isinstance(cards[0], str) else {"cards": cards}
    stand_in = types.ModuleType("pynvml")
    stand_in.__dict__.update(vars(pynvml))
    for name, answer in _answers(**(parts | answers)).items():
        assert hasattr(pynvml, name), f"the real library has no {name}"
        setattr(stand_in, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    architectures = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    # A cache of its own: what was asked before comes back with the patch's end.
    monkeypatch.setattr(nvml, "_nvml", functools.cache(nvml._nvml.__wrapped__))


def _answers(cards=(), driver="595.10", cuda=13020, init_error=None, linked=False, slices=None, is_root=True):
    """The answers of NVML, a function each. `slices`: {number of a card in MIG mode: how many slices it is cut into}.

    A handle is a card's number, or (number, slice). Without `is_root` a card in MIG mode does not tell its memory.
    """
    slices = slices or {}

    def number(handle):
        return handle[0] if isinstance(handle, tuple) else handle

    def fail(value):
        raise pynvml.NVMLError(value)

    def init():
        if init_error is not None:
            fail(init_error)

    def by_uuid(uuid):
        found = [(i, j) for i in slices for j in range(slices[i]) if uuid_of((i, j)) == uuid]
        return found[0] if found else fail(pynvml.NVML_ERROR_NOT_FOUND)

    def uuid_of(handle):
        return f"MIG-{handle[0]}ccc{handle[1]}" if isinstance(handle, tuple) else f"GPU-{handle}aaa{handle}"

    def name(handle):
        return cards[number(handle)][0] + (" MIG 1g.18gb" if isinstance(handle, tuple) else "")

    def memory(handle):
        if handle in slices and not is_root:
            fail(pynvml.NVML_ERROR_NO_PERMISSION)
        gib = SLICE_GIB if isinstance(handle, tuple) else cards[handle][3]
        return types.SimpleNamespace(total=gib * 2**30, free=gib * 2**29)

    def mig_mode(handle):
        if cards[handle][1] < (8, 0):
            fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(handle in slices)] * 2

    def mig_handle(handle, i):
        return (handle, i) if i < slices[handle] else fail(pynvml.NVML_ERROR_NOT_FOUND)

    return {
        "nvmlInit": init,
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": number,
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": mig_handle,
        "nvmlDeviceGetUUID": uuid_of,
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: cards[handle][1],
        "nvmlDeviceGetNumGpuCores": lambda handle: cards[number(handle)][2] * 64,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1500,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlSystemGetDriverVersion": lambda: driver,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: cuda,
        "nvmlDeviceGetP2PStatus": lambda a, b, index: 0 if linked else 3,
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: 10 if abs(a - b) == 1 else 50,
    }
