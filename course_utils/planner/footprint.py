"""The bytes that a rank of a stage holds: each category at its maximum, and the total at the peak of a step."""

from collections.abc import Sequence

from .lines import Line, total
from .methods import Method, dense_parameters, expert_parameters, held_parameters, parameters_of
from .networks import Layer

_ZERO = "Rajbhandari and others, 2020"
_ACTIVATIONS = "Korthikanti and others, 2022"
_FSDP = "Zhao and others, 2023"


def memory(cut: Sequence[Sequence[Layer]], method: Method, num_micro_batches: int) -> Line:
    """The Line of the stage that holds most; `cut` are the layers of each stage.

    Each category counts at its own maximum, at whatever moment that is.
    """
    found = [_of_stage(i, layers, method, num_micro_batches) for i, layers in enumerate(cut)]
    return max(found, key=lambda line: line.value)


def _of_stage(index, layers, method, num_micro_batches):
    state = method.state
    parts = [
        _kept("weights", layers, state.weights, method, "full"),
        _kept("gradients", layers, state.gradients, method, "gradients"),
        _kept("optimizer state", layers, state.optimizer, method, "optimizer"),
        total("buffers", "bytes", _buffers(layers, method)),
        _activations(index, layers, method, num_micro_batches),
    ]
    return total("memory of a rank", "bytes", parts, f"stage {index}, which holds most" if method.pipeline > 1 else "")


def _kept(name, layers, each, method, needed):
    def said(number, shards):
        return f"{each:g} B × {number:,.0f} parameters" + (
            f" / {shards} shards" if shards > 1 and method.divides(needed) else ""
        )

    formula, of_experts = said(dense_parameters(layers, method), method.shards), expert_parameters(layers, method)
    if of_experts:
        formula += f", and of experts {said(of_experts, method.expert_shards)}"
    return Line(name, each * held_parameters(layers, method, needed), "bytes", formula, _ZERO)


def _buffers(layers, method):
    """The buffers of data parallelism for the stage's layers, beside the states."""
    sent = method.state.sent
    if method.divides("full"):
        sizes = sorted((parameters_of([layer], method) for layer in layers), reverse=True)
        of_largest = f"{sent:g} B of the largest unit's {sizes[0]:,.0f} parameters"
        yield Line("gathered weights", sent * sizes[0], "bytes", of_largest, _FSDP)
        if method.overlap and len(sizes) > 1:
            formula = f"{sent:g} B of {sizes[1]:,.0f} parameters, gathered ahead"
            yield Line("the next unit's weights", sent * sizes[1], "bytes", formula)
        yield Line("gathered unit's gradients", sent * sizes[0], "bytes", of_largest, _FSDP)
        if len(sizes) > 1:
            yield Line(
                "gradients being sent",
                sent * sizes[1],
                "bytes",
                f"{sent:g} B of {sizes[1]:,.0f} parameters, of the unit before",
            )
    elif method.copies > 1 and method.buckets:
        own = parameters_of(layers, method)
        yield Line("gradients' buckets", sent * own, "bytes", f"{sent:g} B × {own:,.0f} parameters, a copy to be sent")


def in_flight(index: int, method: Method, num_micro_batches: int) -> float:
    """The number of micro-batches whose activations stage `index` holds at once; fractional with chunks."""
    p, m = method.pipeline, num_micro_batches
    if p == 1:
        return 1
    if method.schedule == "gpipe":
        return m
    if method.schedule == "interleaved":
        return min(m, p - index + (p - 1) / method.chunks)
    return min(m, p - index)


def _activations(index, layers, method, num_micro_batches):
    kept = sum(kept_bytes(layer, method) for layer in layers)
    count = in_flight(index, method, num_micro_batches)
    parts = [
        Line(
            "kept activations",
            count * method.samples * kept,
            "bytes",
            f"{kept:,.0f} B a sample × {method.samples:g} × {count:g} micro-batches at once",
            _ACTIVATIONS,
        )
    ]
    again = max(_recomputed(layer, method) for layer in layers)
    parts.append(
        Line(
            "in one backward pass",
            method.samples * again,
            "bytes",
            "recomputed activations, the loss's gradient",
            _ACTIVATIONS,
        )
    )
    return total("activations", "bytes", parts)


def _recomputed(layer, method):
    """Bytes per sample that a layer holds only during its backward pass, recomputed activations and `briefly`."""
    briefly = layer.on_rank("briefly", method.tensor, method.sequence_parallel)
    is_again = layer.is_block and method.checkpointing != "none"
    return briefly + (kept_bytes(layer, method, recomputed=True) - kept_bytes(layer, method) if is_again else 0.0)


def kept_bytes(layer: Layer, method: Method, recomputed: bool = False) -> float:
    """Bytes of activations a layer keeps per sample; with `recomputed`, right after their recomputation."""
    t, is_divided = method.tensor, method.sequence_parallel
    checkpointing = "none" if recomputed or not layer.is_block else method.checkpointing
    if checkpointing == "full":
        return layer.output / (t if is_divided else 1)
    if checkpointing == "operations" and layer.split.shapes:
        return _kept_by_operation(layer, t, is_divided)
    kept = layer.on_rank("kept", t, is_divided)
    return kept - layer.core.kept / t if checkpointing == "selective" else kept


def _kept_by_operation(layer, tensor, is_divided):
    """Bytes of the block's input, of the context of attention, and of the results of every second product."""
    attended, whole = layer.split.shapes[1], 1 / (tensor if is_divided else 1)
    element_bytes = layer.output / (attended.rows * attended.columns)
    results = sum(
        shape.rows * shape.columns * (whole if shape.split == "depth" else 1 / tensor)
        for shape in (*layer.split.shapes, *layer.expert_work.shapes)
    )
    context = attended.rows * attended.depth / tensor
    return layer.output * whole + element_bytes * (context + results / 2)


def peak(cut: Sequence[Sequence[Layer]], method: Method, num_micro_batches: int) -> Line:
    """The Line of the peak of a step, on the stage where it is highest.

    Layer by layer, gradients appear as activations are freed. With several micro-batches the first one's gradients
    stay.
    """
    found = [_peak_of_stage(i, layers, method, num_micro_batches) for i, layers in enumerate(cut)]
    return max(found, key=lambda line: line.value)


def _peak_of_stage(index, layers, method, m):
    state = method.state
    always = {
        "weights": state.weights * held_parameters(layers, method, "full"),
        "optimizer state": state.optimizer * held_parameters(layers, method, "optimizer"),
    }
    sizes = [parameters_of([layer], method) for layer in layers]
    held = [held_parameters([layer], method, "gradients") for layer in layers]
    kept = [method.samples * kept_bytes(layer, method) for layer in layers]
    of_others = (in_flight(index, method, m) - 1) * sum(kept)  # the other micro-batches
    buckets = sum(line.value for line in _buffers(layers, method))
    moments = []
    for i in reversed(range(len(layers))):
        before, after = sum(held[i + 1 :]), sum(held[i:])  # parameters that have gradients
        if m > 1:
            before = after = sum(held)
        activations = sum(kept[: i + 1]) + method.samples * _recomputed(layers[i], method)
        if not method.divides("full"):
            moments.append((i, after, buckets, activations))
            continue
        ahead = sizes[i - 1] if i and method.overlap else 0
        sending = sizes[i + 1] if i + 1 < len(layers) else 0  # the previous unit's gradients, still being sent
        during = state.sent * (2 * sizes[i] + ahead + sending)
        moments.append((i, before, during, activations))
        moments.append((i, after, state.sent * (2 * sizes[i] + ahead), sum(kept[:i])))
    i, there, buffers, activations = max(moments, key=lambda each: state.gradients * each[1] + each[2] + each[3])
    then = always | {
        "gradients": state.gradients * there,
        "buffers": buffers,
        "activations": activations + of_others,
    }
    parts = [Line(name, value, "bytes", "at this moment") for name, value in then.items()]
    stage = f" of stage {index}" if method.pipeline > 1 else ""
    return total("peak", "bytes", parts, f"in the backward pass of {layers[i].name} (number {i}{stage})")
