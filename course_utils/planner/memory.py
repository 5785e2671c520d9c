"""The bytes that a rank of a stage holds at its fullest, by category."""

from .lines import Line, total
from .methods import parameters_of

_ZERO = "Rajbhandari and others, 2020"
_ACTIVATIONS = "Korthikanti and others, 2022"


def memory(cut, method, num_micro_batches):
    """The Line of the stage that holds most; `cut` are the stages' layers."""
    found = [_of_stage(i, layers, method, num_micro_batches) for i, layers in enumerate(cut)]
    return max(found, key=lambda line: line.value)


def _of_stage(index, layers, method, num_micro_batches):
    state, own = method.state, parameters_of(layers, method)
    largest = max(parameters_of([layer], method) for layer in layers)
    parts = [
        _kept("weights", own, state.weights, method, "full"),
        _kept("gradients", own, state.gradients, method, "gradients"),
        _kept("optimizer state", own, state.optimizer, method, "optimizer"),
    ]
    if method.divides("full"):
        formula = f"{state.sent} B of the largest unit's {largest:,.0f} parameters"
        parts.append(Line("gathered weights", state.sent * largest, "bytes", formula, "Zhao and others, 2023"))
        parts.append(Line("gathered unit's gradients", state.sent * largest, "bytes", formula, "Zhao and others, 2023"))
    parts.append(_activations(index, layers, method, num_micro_batches))
    return total("memory of a rank", "bytes", parts, f"stage {index}, which holds most" if method.pipeline > 1 else "")


def _kept(name, own, each, method, needed):
    over = method.shards if method.divides(needed) else 1
    formula = f"{each:g} B × {own:,.0f} parameters" + (f" / {over} shards" if over > 1 else "")
    return Line(name, each * own / over, "bytes", formula, _ZERO)


def in_flight(index, method, num_micro_batches):
    """How many micro-batches' activations stage `index` keeps at once; a fraction where chunks are kept one by one."""
    p, m = method.pipeline, num_micro_batches
    if method.schedule == "gpipe":
        return m
    if method.schedule == "interleaved":
        return min(m, p - index + (p - 1) / method.chunks)
    return min(m, p - index)


def _activations(index, layers, method, num_micro_batches):
    kept = sum(kept_bytes(layer, method) for layer in layers)
    count = in_flight(index, method, num_micro_batches)
    parts = [Line("kept activations", count * method.micro_batch * kept, "bytes",
                  f"{kept:,.0f} B a sample × {method.micro_batch} × {count:g} micro-batches at once", _ACTIVATIONS)]  # fmt: skip
    blocks = [layer for layer in layers if layer.is_block]
    if method.checkpointing != "none" and blocks:
        again = max(kept_bytes(layer, method, recomputed=True) - kept_bytes(layer, method) for layer in blocks)
        parts.append(Line("recomputed activations", method.micro_batch * again, "bytes", "of one block at a time", _ACTIVATIONS))
    return total("activations", "bytes", parts)


def kept_bytes(layer, method, recomputed=False):
    """Bytes of activations that a layer keeps for one sample; `recomputed`: while it has just computed them again."""
    t, is_divided = method.tensor, method.sequence_parallel
    checkpointing = "none" if recomputed or not layer.is_block else method.checkpointing
    if checkpointing == "full":
        return layer.output / (t if is_divided else 1)
    kept = layer.on_rank("kept", t, is_divided)
    return kept - layer.core.kept / t if checkpointing == "selective" else kept
