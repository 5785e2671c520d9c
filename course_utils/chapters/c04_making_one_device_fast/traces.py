"""Training steps under torch's profiler: the slowest operations, the phases, and when a GPU was busy."""

import statistics

from ...measure import profiled

PHASES = ("load", "copy", "forward", "backward", "update")
KINDS = {  # the first part that a name contains decides
    # torch.compile names a kernel after all operations that it fused. How it runs stands in front: element by element
    # (poi, for) or with sums over elements (red, per, spl). Its own convolutions and products begin with triton_tem.
    **dict.fromkeys([f"triton_{how}" for how in ("poi", "for", "red", "per", "spl")] + ["compiled"], "torch.compile"),
    # Adam's kernels: FusedAdamMathFunctor contains "mm"; multi_tensor_apply is torch's default on a GPU.
    **dict.fromkeys(("adam", "multi_tensor"), "optimizer"),
    **dict.fromkeys(("loader", "grid_sampl", "affine"), "loading"),
    **dict.fromkeys(("conv", "fprop", "dgrad", "wgrad"), "convolution"),
    "pool": "pooling",
    **dict.fromkeys(("mm", "linear", "nvjet", "splitk"), "matrix product"),  # the last two are names of cuBLAS
    **dict.fromkeys(("relu", "threshold", "clamp"), "ReLU"),
}


def under_profiler(phases, trace):
    """Return a line per phase and one for the step: median ms in `phases`, median ms in `trace`, and events there.

    `phases` is a `throughput.Phases` of the same step, timed without the profiler.
    """
    host = [event for event in trace.events() if event.device_type.name == "CPU"]
    marks, rows = _marks(host), []
    for name, timing in {**phases.phases, "step": phases.step}.items():
        own = [[mark for mark in step if name in (mark.name, "step")] for step in marks]
        spans = [(step[0].time_range.start, step[-1].time_range.end) for step in own]
        inside = [sum(begin < event.time_range.start < end for event in host) for begin, end in spans]
        seen_ms = statistics.median(end - begin for begin, end in spans) / 1e3
        rows.append(
            f"{name:9s} {1e3 * timing.median_s:7.2f} ms   under the profiler {seen_ms:7.2f} ms, "
            f"{statistics.median(inside):6,.0f} events"
        )
    return "\n".join(rows)


def _marks(host):
    """Return the marks of each step, [[mark of "load", …], …], out of the `host`'s events."""
    marks = sorted((event for event in host if event.name in PHASES), key=lambda event: event.time_range.start)
    names = [name for name in PHASES if any(mark.name == name for mark in marks)]
    return [marks[i : i + len(names)] for i in range(0, len(marks), len(names))]


def largest(trace, count=5):
    """Return [(operation, its share of the computing time)], the largest first.

    Operations are kernels if a GPU ran any, else operators.
    """
    rows = [row for row in trace.key_averages() if not row.is_user_annotation and row.key not in PHASES]
    # An operator's row would count its kernels' time again.
    kernels = [row for row in rows if row.device_type.name == "CUDA"]
    times = {row.key: row.self_device_time_total for row in kernels} or {
        row.key: row.self_cpu_time_total for row in rows
    }
    whole = sum(times.values())
    return [(name, times[name] / whole) for name in sorted(times, key=times.get, reverse=True)[:count]]


def table(traces, count=5):
    """Return lines for {name: trace}: the largest operations of each, with their shares and kinds.

    A kernel's own name says little: torch.compile names what it fused after operations that it does not do.
    """
    lines = []
    for name, trace in traces.items():
        rows = [
            f"  {share:4.0%}  {kind(operation):14s} {operation.removeprefix('void ')[:56]}"
            for operation, share in largest(trace, count)
        ]
        lines += [f"{name}, shares of the computing time:", *rows]
    return "\n".join(lines)


def kind(name):
    """Return in a few words what an operator or a kernel of this name does."""
    return next((kind for part, kind in KINDS.items() if part in name.lower()), "other")


def spans_of_last_step(trace):
    """Return {phase: [(begin ms, end ms, kind)]} of the last step.

    A phase holds the operators that Python called in it, "GPU" the kernels that ran.
    """
    host = [event for event in trace.events() if event.device_type.name == "CPU"]
    marks = _marks(host)[-1]
    begin, rows = marks[0].time_range.start, {mark.name: [] for mark in marks}

    def span(event):
        return (event.time_range.start - begin) / 1e3, (event.time_range.end - begin) / 1e3, kind(event.name)

    for event in host:
        for mark in marks:  # a GPU's backward pass runs in its own thread: no parent
            inside = mark.time_range.start <= event.time_range.start < mark.time_range.end
            if inside and event.cpu_parent in (mark, None) and event.name not in PHASES:
                rows[mark.name].append(span(event))
    gpu = [span(event) for event in profiled.on_gpu(trace.events()) if event.time_range.start >= begin]
    return {**rows, **({"GPU": gpu} if gpu else {})}


def busy_ms(trace, num_steps):
    """Return milliseconds per step in which a kernel ran; overlapping kernels count once. 0 without a GPU."""
    busy, until = 0, 0
    for time in sorted((event.time_range for event in profiled.on_gpu(trace.events())), key=lambda time: time.start):
        busy += max(0, time.end - max(time.start, until))
        until = max(until, time.end)
    return busy / 1e3 / num_steps


def num_kernels(trace, num_steps):
    """Return the number of kernels per step; copies and fills of memory are none. 0 without a GPU."""
    return len(profiled.kernels(trace.events())) / num_steps


def of_gpu(traces, num_steps):
    """Return {"busy_ms": {name: ms}, "kernels": {name: number}} per step of {name: trace of `num_steps` steps}."""
    return {
        "busy_ms": {name: busy_ms(trace, num_steps) for name, trace in traces.items()},
        "kernels": {name: num_kernels(trace, num_steps) for name, trace in traces.items()},
    }
