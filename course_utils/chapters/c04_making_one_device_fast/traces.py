"""Training steps under torch's profiler: the slowest operations, the phases, and when a GPU was busy."""

from torch.profiler import ProfilerActivity, profile, record_function

from ... import hardware
from ...measure import throughput

PHASES = ("load", "copy", "forward", "backward", "update")
KINDS = {
    # torch.compile names a kernel after all operations that it fused. How it runs stands in front: element by element
    # (poi, for) or with sums over elements (red, per, spl). Its own convolutions and products begin with triton_tem.
    "triton_poi": "fused, element-wise", "triton_for": "fused, element-wise",
    "triton_red": "fused, with sums", "triton_per": "fused, with sums", "triton_spl": "fused, with sums",
    "conv": "convolution", "fprop": "convolution", "dgrad": "convolution", "wgrad": "convolution", "pool": "pooling",
    "mm": "matrix product", "linear": "matrix product", "adam": "optimizer", "loader": "loading",
    "grid_sampl": "loading", "affine": "loading", "relu": "ReLU", "threshold": "ReLU",
}  # fmt: skip


def profile_steps(step, num_steps):
    """Run `step(phase)`, which marks its phases, `num_steps` times under the profiler; return the trace."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + bool(hardware.gpus_in_use())]
    with profile(activities=activities, acc_events=True) as trace:
        for _ in range(num_steps):
            step(record_function)  # phases appear under their names
        throughput.now()  # waits for the GPU, too
    return trace


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
    """Return lines for {name: trace}: the largest operations of each, with their shares.

    A kernel that torch.compile fused is named after operations that it does not do, so its kind is added.
    """
    lines = []
    for name, trace in traces.items():
        rows = [f"  {share:4.0%}  {_told(operation)}" for operation, share in largest(trace, count)]
        lines += [f"{name}, shares of the computing time:", *rows]
    return "\n".join(lines)


def _told(operation):
    is_fused = operation.startswith("triton_") and kind(operation).startswith("fused")
    return f"{operation[:80]} ({kind(operation)})" if is_fused else operation[:80]


def timeline(traces):
    """Turn {"0 …": trace} into {"0: load": spans} of each trace's last step, for `plots.timeline`."""
    return {
        f"{name[0]}: {phase}": spans
        for name, trace in traces.items()
        for phase, spans in spans_of_last_step(trace).items()
    }


def kind(name):
    """Return in a few words what an operator or a kernel of this name does."""
    return next((kind for part, kind in KINDS.items() if part in name.lower()), "other")


def spans_of_last_step(trace):
    """Return {phase: [(begin ms, end ms, kind)]} of the last step.

    A phase holds the operators that Python called in it, "GPU" the kernels that ran.
    """
    host = [event for event in trace.events() if event.device_type.name == "CPU"]
    marks = [event for event in host if event.name in PHASES][-len(PHASES) :]
    begin = marks[0].time_range.start
    rows, gpu = {mark.name: [] for mark in marks}, []
    for event in trace.events():
        start, end = event.time_range.start, event.time_range.end
        span = (start - begin) / 1e3, (end - begin) / 1e3, kind(event.name)
        if event.device_type.name == "CUDA" and start >= begin and not event.is_user_annotation:
            gpu.append(span)
        for mark in marks:  # a GPU's backward pass runs in its own thread: no parent
            inside = mark.time_range.start <= start < mark.time_range.end and event.cpu_parent in (mark, None)
            if inside and event.device_type.name == "CPU" and event.name not in PHASES:
                rows[mark.name].append(span)
    return {**rows, **({"GPU": gpu} if gpu else {})}


def busy_ms(trace, num_steps):
    """Return milliseconds per step in which a kernel ran; overlapping kernels count once. 0 without a GPU."""
    kernels = [e.time_range for e in trace.events() if e.device_type.name == "CUDA" and not e.is_user_annotation]
    busy, until = 0, 0
    for time in sorted(kernels, key=lambda time: time.start):
        busy += max(0, time.end - max(time.start, until))
        until = max(until, time.end)
    return busy / 1e3 / num_steps
