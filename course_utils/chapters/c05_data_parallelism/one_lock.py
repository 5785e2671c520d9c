"""Two threads against one after the other, with Python's lock and without it; needs PyTorch alone.

Run it in a free-threaded build of Python, where the variable switches the lock on (1) and off (0):

    PYTHON_GIL=0 python3.13t one_lock.py
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

ROUNDS, NUM_CALLS = 150, 5_000
REPEATS = 5  # so that handing the work to a thread counts little


def make_small_layers():  # (B, 3, 32, 32) → (B, 10)
    layers = [layer for _ in range(40) for layer in (nn.Linear(48, 48), nn.ReLU())]
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), *layers, nn.Linear(48, 10))


NETS = [make_small_layers() for _ in range(2)]
IMAGES, LABELS = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))


def small_layers(number):
    for _ in range(REPEATS):
        F.cross_entropy(NETS[number](IMAGES), LABELS).backward()


def small_from_python(number):
    x = torch.ones(48)
    for _ in range(NUM_CALLS):
        x.sin_()


def main():
    torch.set_num_threads(1)
    threads = [ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) for _ in range(2)]
    has_lock = sys._is_gil_enabled() if hasattr(sys, "_is_gil_enabled") else True
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, the lock is {'on' if has_lock else 'off'}")
    for work in (small_layers, small_from_python):
        ways = {
            "one by one": lambda: [work(number) for number in range(2)],
            "two threads": lambda: [call.result() for call in [t.submit(work, i) for i, t in enumerate(threads)]],
        }
        shortest_s = dict.fromkeys(ways, float("inf"))
        for _ in range(ROUNDS):
            for name, way in ways.items():
                begin = time.perf_counter()
                way()
                shortest_s[name] = min(shortest_s[name], time.perf_counter() - begin)
        one_by_one, two = shortest_s.values()
        times = f"one by one {1e3 * one_by_one:.2f} ms, two threads {1e3 * two:.2f} ms"
        print(f"{work.__name__}: {times}, × {one_by_one / two:.2f}")


if __name__ == "__main__":
    main()
