"""Checks of chapter 19: a method chosen by its bytes, one network under every method, a planner's wrong term."""

import functools
import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ... import models
from ...checks.expect import case, expect, expect_number, expect_row, explain, max_difference, not_a, short, unchanged
from ...checks.judge import run, wait_for_the_others
from ...measure import memory
from ...planner import Cluster, Method, Network, plan, transformer

# ---- 19.1 ---------------------------------------------------------------------------------------------------------

# (parameters, num_gpus, memory, kept, recomputed, largest): jobs for each answer, one at the limit, one too large.
_JOBS = {
    "1.3 billion parameters on 8 GPUs of 80 GB": (1.3e9, 8, 80e9, 20e9, 3e9, 60e6),
    "3 billion parameters on 8 GPUs of 40 GB": (3e9, 8, 40e9, 22e9, 4e9, 90e6),
    "7 billion parameters on 8 GPUs of 80 GB": (7e9, 8, 80e9, 40e9, 6e9, 200e6),
    "13 billion parameters on 16 GPUs of 40 GB": (13e9, 16, 40e9, 60e9, 9e9, 320e6),
    "175 billion parameters on 32 GPUs of 80 GB": (175e9, 32, 80e9, 300e9, 20e9, 1.8e9),
    "a job that fits to the byte": (1_000_000, 4, 16_500_000, 500_000, 100_000, 50_000),
}
_NAMES = ("replicas", "shard optimizer", "shard all", "shard all, recompute")


def check_19_1(choose):
    """`choose` returns the name of the first method that fits, or None, and its bytes.

    Its arguments are `parameters, num_gpus, memory, kept, recomputed, largest`.
    """
    run(_judge_choices, choose)
    return f"{len(_JOBS)} jobs: the first method that fits, and its bytes."


def _needs(parameters, num_gpus, memory, kept, recomputed, largest, *, copies=4, width=2, optimizer=12):
    whole, N = 4 + optimizer, num_gpus
    return {
        "replicas": whole * parameters + kept,
        "shard optimizer": 4 * parameters + optimizer * parameters / N + kept,
        "shard all": whole * parameters / N + copies * width * largest + kept,
        "shard all, recompute": whole * parameters / N + copies * width * largest + recomputed,
    }


def _judge_choices(choose):
    for what, job in _JOBS.items():
        with case(what):
            needs = _needs(*job)
            name, truth = next(
                ((name, size) for name, size in needs.items() if size <= job[2]), (None, needs[_NAMES[-1]])
            )
            answer = expect_row(choose(*job), 2, of="the method's name and its bytes")
            given = expect_number(answer[1], "its second item")
            expect(
                answer[0] in (*_NAMES, None),
                f"the method is {short(answer[0])}, and none of {', '.join(_NAMES)}, or None",
            )
            _judge_name(answer[0], name, needs, job[2])
            explain(
                given,
                truth,
                _slips(name, truth, job),
                said=f"{name or 'the last method'} would hold {float(given):,.0f} bytes",
                otherwise="add up: states, buffers, activations",
            )


def _judge_name(given, name, needs, limit):
    if given == name:
        return
    said = f"the answer is {short(given)}"
    exactly = ": is a job that needs exactly as much too large?" if name and needs[name] == limit else ""
    expect(given is not None, f"{said}, and {limit:,.0f} bytes are enough for one of the methods{exactly}")
    expect(name is not None, f"{said}, and no method fits into {limit:,.0f} bytes")
    expect(needs[given] <= limit, f"{said}, which does not fit into {limit:,.0f} bytes: it holds {needs[given]:,.0f}")
    expect(False, f"{said}{exactly or ': it fits, but one before it does, too'}")


def _slips(name, truth, job):
    parameters, N, _, kept, recomputed, largest = job
    name = name or _NAMES[-1]
    others = _needs(*job)
    return {
        "gradients are missing in it, or weights": truth - 2 * parameters / (N if "all" in name else 1),
        "the optimizer keeps 12 bytes for each parameter: how many does it count?": _needs(*job, optimizer=8)[name],
        "no copy of the largest unit is in it": _needs(*job, copies=0)[name],
        "one copy of the largest unit is in it: how many are there?": _needs(*job, copies=1)[name],
        "two copies of the largest unit are in it: how many are there?": _needs(*job, copies=2)[name],
        "the copies of the largest unit have 16 bits": _needs(*job, width=4)[name],
        "the activations are missing in it": truth - (recomputed if name == _NAMES[-1] else kept),
        "which activations are there with recomputation?": truth - recomputed + kept if name == _NAMES[-1] else None,
        "the largest unit's copies are not divided": truth - 8 * largest * (1 - 1 / N),
        "nothing is divided in it by the number of GPUs": others["replicas"] if name != "replicas" else None,
        "everything is divided in it; what does a sharded optimizer leave whole?": 16 * parameters / N + kept
        if name == "shard optimizer"
        else None,
        "that is in gigabytes, and bytes are asked for": truth / 1e9,
    }


# ---- 19.2 ---------------------------------------------------------------------------------------------------------

_METHODS = ("single", "dp", "ddp", "fsdp", "pipeline", "tensor")
_SHARES = ("ddp", "fsdp")  # in which a rank takes its part of the batch
_NUM_STEPS, _BATCH, _MICRO_BATCHES = 3, 16, 4
_KEYS = ("parameters", "held", "moved", "samples_per_s")
_HELD = ("parameters", "gradients", "optimizer state")


def check_19_2(train_with):
    """`train_with(method, model, x, y, num_steps)` trains on all ranks and returns this rank's row of the table."""
    for method in _METHODS:
        with case(method):
            rows = run(_judge_row, train_with, method, world_size=2)
            _judge_together(method, rows)
    return f"{len(_METHODS)} methods end with the same parameters, and what they hold and move fits together."


def _made():
    torch.manual_seed(0)
    model = models.mlp(d=32, num_blocks=4).double()
    return model, torch.rand(_BATCH, 1, 16, 16, dtype=torch.float64), torch.arange(_BATCH) % 10


def _truth():
    """Return the parameters after training on one device, and {kind: bytes} for all of _HELD."""
    model, x, y = _made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(_NUM_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    whole = memory.weight_bytes(model)
    return dict(model.named_parameters()), {
        "parameters": whole,
        "gradients": whole,
        "optimizer state": memory.optimizer_bytes(optimizer),
    }


def _judge_row(train_with, method):
    model, x, y = _made()
    parameters, held = _truth()
    forwards = _Forwards(model)
    begin = time.perf_counter()
    with unchanged(x=x, y=y):
        row = train_with(method, model, x, y, _NUM_STEPS)
    took_s = time.perf_counter() - begin
    wait_for_the_others()
    expect(isinstance(row, dict), f"the answer is {not_a(row, 'a dict')}")
    for key in _KEYS:
        expect(key in row, f"the answer has no {key!r}; its keys are {sorted(map(str, row))}")
    _judge_parameters(row["parameters"], parameters, method)
    expect(
        isinstance(row["held"], dict) and set(_HELD) <= row["held"].keys(),
        f"'held' is {short(row['held'])}, not the dict of alive.held_bytes(…)",
    )
    _judge_forwards(forwards, method)
    ours = {kind: expect_number(row["held"][kind], f"'held' of {kind}") for kind in _HELD}
    moved, rate = (expect_number(row[key], repr(key)) for key in ("moved", "samples_per_s"))
    _judge_rate(rate, took_s, forwards.span_s)
    return ours, held, moved, list(row["parameters"])


class _Forwards:
    """What went through the layers of `model` that were called: {layer: [samples of each call, …]}, and when."""

    def __init__(self, model):
        self.samples, self._moments = {}, []
        for name, layer in model.named_modules():
            if not list(layer.children()):
                layer.register_forward_pre_hook(functools.partial(self._note, name))

    def _note(self, name, layer, given):
        if not given[0].is_meta:
            self.samples.setdefault(name, []).append(len(given[0]))
            self._moments.append(time.perf_counter())

    @property
    def first(self):
        """The samples of each call of the first layer, but for the call in which a pipeline's stage finds shapes."""
        calls = next(iter(self.samples.values()), [])
        return calls[len(calls) % _NUM_STEPS == 1 :]

    @property
    def span_s(self):
        """Seconds from the first call to the last."""
        return self._moments[-1] - self._moments[0] if self._moments else 0.0


def _judge_forwards(forwards, method):
    """Check how many samples, in how many pieces, went through this rank's first layer."""
    found, share = sum(forwards.first), _BATCH * _NUM_STEPS // (dist.get_world_size() if method in _SHARES else 1)
    expect(
        found == share,
        f"{found} samples went through rank {dist.get_rank()}'s layers in {_NUM_STEPS} steps, and {share} are asked",
    )
    if method == "pipeline":
        pieces = len(forwards.first) / _NUM_STEPS
        expect(
            pieces == _MICRO_BATCHES,
            f"the batch went through in {pieces:g} micro-batches, and {_MICRO_BATCHES} are asked",
        )


def _judge_parameters(given, truth, method):
    expect(isinstance(given, dict) and given, f"'parameters' is {not_a(given, 'a dict of tensors by name')}")
    extra = [name for name in given if name not in truth]
    expect(
        not extra,
        f"'parameters' has {extra[0] if extra else ''!r}: name them as the model given does, without a wrapper",
    )
    missing = [name for name in truth if name not in given]
    expect(method == "pipeline" or not missing, f"'parameters' lacks {missing[0] if missing else ''!r}")
    for name, tensor in given.items():
        expect(type(tensor).__name__ != "DTensor", f"{name!r} is a DTensor, a part of the whole")
        expect(
            isinstance(tensor, torch.Tensor) and tensor.shape == truth[name].shape,
            f"{name!r} is {short(tensor)}, and should be whole: shape {tuple(truth[name].shape)}",
        )
        apart = max_difference(tensor.detach().double(), truth[name].detach())
        expect(
            apart < 1e-6,
            f"{name!r} is {apart:.2g} from what one device trains in {_NUM_STEPS} steps",
        )


def _judge_rate(rate, took_s, span_s):
    expect(0 < rate < math.inf, f"'samples_per_s' is {rate}")
    least = _BATCH * _NUM_STEPS / took_s
    expect(
        rate > 0.99 * least,
        f"'samples_per_s' is {rate:,.1f}, less than {least:,.1f}, which the whole call came to: does it count "
        "all ranks' samples, and all steps?",
    )
    most = _BATCH * _NUM_STEPS / span_s
    expect(
        rate < 1.01 * most,
        f"'samples_per_s' is {rate:,.1f}, and {most:,.1f} would already leave out all that came before the first layer "
        "and after the last: what was timed, and which samples were counted?",
    )


def _judge_together(method, rows):
    """Compare what two ranks hold and send with what one device holds."""
    truth, bytes_of = rows[0][1], dict(zip(_HELD, zip(*([row[0][kind] for kind in _HELD] for row in rows))))
    both = [name for name in rows[0][3] if name in rows[1][3]]
    expect(
        method != "pipeline" or not both,
        f"both ranks return {both[0] if both else ''!r}: in a pipeline, each returns what its own stage holds",
    )
    for kind, sizes in bytes_of.items():
        whole = truth[kind]
        sums_up = sum(sizes) / whole
        if method in ("single", "dp", "ddp"):
            expect(
                all(0.99 < size / whole < 1.01 for size in sizes),
                f"each rank holds whole {kind}, {whole:,} bytes, and yours "
                f"{' and '.join(f'{size:,}' for size in sizes)}: when are they counted?",
            )
        elif method in ("fsdp", "pipeline"):
            expect(
                0.98 < sums_up < 1.08,
                f"together the ranks hold {sums_up:.2f} times the {kind} of one device, and should hold them once",
            )
            expect(max(sizes) < 0.8 * whole, f"a rank holds {max(sizes) / whole:.0%} of the {kind}: are they divided?")
        else:
            expect(
                0.98 < sums_up < 1.7 and max(sizes) < 0.9 * whole,
                f"a rank holds {max(sizes) / whole:.0%} of the {kind}: are the pairs of layers divided?",
            )
    _judge_moved(method, [row[2] for row in rows], truth["parameters"])


def _judge_moved(method, moved, whole):
    if method in ("single", "dp"):
        expect(not any(moved), f"{max(moved):,} bytes moved, and this method sends no messages")
    elif method == "ddp":
        expect(
            all(0.95 < size / whole < 1.2 for size in moved),
            f"{moved[0]:,} bytes moved in a step: gradients have {whole:,}. Is it one step's, the last one's?",
        )
    elif method == "fsdp":
        expect(
            all(1.8 < size / whole < 3.5 for size in moved),
            f"{moved[0]:,} bytes moved in a step, {moved[0] / whole:.1f} times the "
            "parameters: what is gathered forward, backward, and what is scattered?",
        )
    else:
        expect(
            all(0 < size < whole for size in moved),
            f"{' and '.join(f'{size:,}' for size in moved)} bytes moved in a step, of "
            f"activations and their gradients; the parameters have {whole:,}",
        )


# ---- 19.3 ---------------------------------------------------------------------------------------------------------

_NODE = Cluster("A100-80")
_ROWS = {  # Narayanan et al. 2021: hidden, layers, heads, tensor, pipeline, data, recomputed
    "1.7 billion parameters, 32 GPUs": (2304, 24, 24, 1, 1, 32, True),
    "18.4 billion parameters, 256 GPUs": (6144, 40, 48, 8, 1, 32, True),
    "145.6 billion parameters, 1,536 GPUs": (12288, 80, 96, 8, 8, 24, True),
    "145.6 billion parameters, nothing recomputed": (12288, 80, 96, 8, 8, 24, False),
}
_TINY = "18.4 billion parameters, 256 GPUs", 1e-7  # a row, and a factor that leaves microseconds of its step
_ROUNDING = 1 + 1e-12  # planners add in different orders
_TERMS = ("forward products", "backward products", "products again", "the rest", "bubble", "messages")


def check_19_3(wrong_term):
    """`wrong_term(job, lines)` returns the name of the wrong line, and its right value in seconds."""
    cases = [
        (what, name, 1.0) for what, row in _ROWS.items() for name in _TERMS if not (name == "bubble" and row[4] == 1)
    ]
    cases += [(_TINY[0], name, _TINY[1]) for name in ("the rest", "messages")]
    run(_judge_terms, wrong_term, cases)
    return f"in {len(cases)} plans of published jobs the wrong term was found, and mended."


def _job(hidden, num_layers, heads, tensor, pipeline, data, recomputed):
    """Return one stage of equal blocks of a published job, as the exercise's dict."""
    method = Method(
        data, tensor, pipeline, checkpointing="full" if recomputed else "none", precision="fp16", overlap=False
    )
    network = Network(transformer(hidden, num_layers, heads, 2048, 51200).layers[1:-1], 2048, heads)
    step = plan(network, _NODE, method, data * 8).step
    gpu, per_stage = _NODE.gpu, num_layers // pipeline
    flops = per_stage * network.layers[0].on_rank("flops", tensor)
    moved = (step["forward, the rest"].value + step["backward, the rest"].value) * gpu.bandwidth * gpu.efficiency.memory
    return {
        "flops": flops,
        "bytes": moved,
        "peak": gpu.peak("fp16"),
        "matrix": gpu.efficiency.matrix,
        "bandwidth": gpu.bandwidth,
        "memory": gpu.efficiency.memory,
        "recomputed": recomputed,
        "stages": pipeline,
        "ranks": data,
        "gradient_bytes": 2 * network.parameters / tensor / pipeline,
        "bus": 25e9,
    }


def _right(job):
    forward = job["flops"] / job["peak"] / job["matrix"]
    n = job["ranks"]
    return {
        "forward products": forward,
        "backward products": 2 * forward,
        "products again": forward if job["recomputed"] else 0.0,
        "the rest": job["bytes"] / job["bandwidth"] / job["memory"],
        "messages": 2 * (n - 1) / n * job["gradient_bytes"] / job["bus"],
    }


def _mistaken(name, job, right):
    """Return the seconds in that line from a planner with a common mistake."""
    return {
        "forward products": right["forward products"] * job["matrix"],  # at peak FLOP/s
        "backward products": right["backward products"] / 2,
        "products again": 0.0 if job["recomputed"] else right["forward products"],
        "the rest": right["the rest"] * job["memory"],
        "messages": right["messages"] / 2,  # only a reduce-scatter
    }[name]


def _judge_terms(wrong_term, cases):
    for what, name, factor in cases:
        with case(what if factor == 1 else f"{what}, {1 / factor:,.0f} times as small"):
            job = _job(*_ROWS[what])
            job |= {key: factor * job[key] for key in ("flops", "bytes", "gradient_bytes")}
            right = {term: seconds * _ROUNDING for term, seconds in _right(job).items()}
            lines = dict(right) if name == "bubble" else right | {name: _mistaken(name, job, right)}
            micro_batch = sum(lines[term] for term in _TERMS[:4])
            truth = right[name] if name != "bubble" else (job["stages"] - 1) * micro_batch
            lines["bubble"] = (job["stages"] - (name != "bubble")) * micro_batch
            with unchanged(job=job, lines=lines):
                answer = wrong_term(dict(job), {term: lines[term] for term in _TERMS})
            expect(answer is not None, "the answer is None, and one of the lines is wrong")
            given, seconds = expect_row(answer, 2, of="the line's name and its right seconds")
            expect(given in _TERMS, f"the line is {short(given)}; there are {', '.join(_TERMS)}")
            _judge_term(given, name, lines)
            seconds = expect_number(seconds, f"the right seconds of {name!r}")
            explain(
                seconds,
                truth,
                {
                    "that is what the line has now": lines[name],
                    "that is in milliseconds": 1e3 * truth,
                },
                said=f"{name!r} would be right with {float(seconds):.6g} s",
                close=1e-6,
                otherwise="compute it from the job",
            )


def _judge_term(given, name, lines):
    if given == name:
        return
    if given == "bubble" and name in _TERMS[:4]:
        expect(False, "the bubble follows from the lines as they are, right or wrong, and is right for these")
    expect(lines[given], f"{given!r} is right with 0 s: is there anything of it in this job?")
    expect(False, f"{given!r} has the seconds that the job comes to")
