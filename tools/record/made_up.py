"""Records of a nonexistent GPU machine, so that chapters show results "recorded on" another machine.

They are derived from a CPU's records, for tests, and are never kept.
"""

import json
import shutil
from pathlib import Path

from course_utils.recorded import FOLDER

MACHINE = "a made-up GPU"
RUNGS = ("0 plain loop", "1 loader workers", "2 pinned, prefetch", "3 data on the device", "4 mixed precision",
         "5 channels_last", "6 fused optimizer", "7 torch.compile")  # fmt: skip
RATES = {"copy": 900.0, "torch.add": 950.0, "many blocks": 940.0, "one block": 8.0, "one thread": 0.1}
KIB, RISING = [2**k for k in range(19)], [0.1 * 2**k / (1 + 2**k / 256) for k in range(19)]  # GB/s of copies
KERNELS = ("our kernel", "a loop that is not unrolled", "without a loop", "vectors that do not overlap",
           "a quarter of the blocks",
           "a quarter of the blocks, vectors that do not overlap", "4 neighbours in turns",
           "4 neighbours in turns, vectors that do not overlap", "4 neighbours, loads first", "torch.add",
           *(f"{apart} apart" for apart in (1, 2, 4, 8, 16, 32)))  # fmt: skip
# Values that a GPU records in addition or instead.
ONLY_A_GPU = {
    "01_copy_bandwidth": {
        "curves": {f"to the GPU, {kind}": [KIB, RISING, [RISING, RISING]] for kind in ("pageable", "pinned")},
    },
    "02_vector_add": {
        "gb_per_s": {way: [[0.05, 0.8, 12.0], [rate / 100, rate / 5, rate]] for way, rate in RATES.items()},
        "changed": {"no loop": 942.0, "four, one by one": 944.0, "four, loads first": 949.0},
        "launch_ms": 0.01, "done_ms": 3.0,
    },
    "03_batch_sweep": {"GPU": {"2": 900.0, "4": 1800.0, "16": 7000.0, "64": 25000.0, "256": 60000.0}},
    "03_memory": {"weights": 480312, "max_memory_allocated": 96306688, "workspaces": 17039360},
    "03_phases": {"work": {"4": 0.3, "64": 2.0}, "step": {"4": 1.6, "64": 2.6}},
    "03_layer_calls": {"fc1, batch 1": 24.0, "fc1, batch 1, in a graph": 3.0},
    "04_formats": {"images_per_s": {"float32": 1000.0, "bf16": 3000.0}, "rates_batch_size": 1024},
    "04_ladder": {
        "images_per_s": {name: [1000.0 * 2**i, 900.0 * 2**i, 1100.0 * 2**i] for i, name in enumerate(RUNGS)},
        "not_here": {}, "busy_ms": {RUNGS[-1]: 0.25}, "kernels": {RUNGS[-1]: 40.0},
    },
    "05_two_devices": {"devices": "cuda:0 and cuda:1"},
    "kernels": {"gb_per_s": {way: {str(2**26): 900.0} for way in KERNELS}},
}  # fmt: skip


def write_records(folder, source=FOLDER):
    """Copy the records of all machines, and add for MACHINE one of each name that a chapter has."""
    folder = Path(folder)
    shutil.copytree(source, folder)
    read = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/[0-9][0-9]_*.json"))
    }
    (folder / "a-made-up-gpu").mkdir()
    for name in {**read, **ONLY_A_GPU}:
        values = (read[name]["values"] if name in read else {}) | ONLY_A_GPU.get(name, {})
        record = {"provenance": {"machine": MACHINE, "gpus": ["made up"]}, "values": values}
        (folder / "a-made-up-gpu" / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
