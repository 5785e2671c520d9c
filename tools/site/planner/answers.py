"""What the page asks the planner, and what it shows of a plan; runs in the browser beside the planner's modules."""

import json
from functools import lru_cache

from course_utils.planner import Method, plan, presets
from course_utils.planner.lines import in_words
from course_utils.planner.methods import schedule_of
from course_utils.planner.published import seen
from course_utils.planner.search import best


def answer(question: str) -> str:
    """The answer to a question, both JSON: {"plans": […]}, {"seen": …}, or {"problem": the planner's sentence}.

    A question has `what` ("best", "plan" or "seen"), `model`, `tokens`, `number` and `gpu` of the GPUs, `batch`,
    `dollars` (of a GPU and hour, or null) and, but for "best", `method`.
    """
    asked = json.loads(question)
    try:
        job = asked["model"], asked["tokens"], f"{asked['number']}x{asked['gpu']}", asked["batch"]
        if asked["what"] == "best":
            found = [_shown(each.plan, asked["dollars"], f"{each.limit} {each.share:.0%}") for each in _best(*job)]
            return json.dumps({"plans": found})
        planned = _plan(job, asked["method"], asked["number"])
        return json.dumps(
            {"seen": str(seen(planned))} if asked["what"] == "seen" else {"plans": [_shown(planned, asked["dollars"])]}
        )
    except ValueError as error:
        return json.dumps({"problem": str(error)})


def _network_and_cluster(model, tokens, gpus):
    return presets.NETWORKS[model](sequence=tokens), presets.cluster(gpus)


@lru_cache(8)  # another price asks again
def _best(model, tokens, gpus, batch):
    return best(*_network_and_cluster(model, tokens, gpus), batch)


def _plan(job, method, number):
    *model_and_gpus, batch = job
    data = max(1, number // (method["tensor"] * method["context"] * method["pipeline"]))
    return plan(
        *_network_and_cluster(*model_and_gpus), Method(data, schedule=schedule_of(method["chunks"]), **method), batch
    )


def _shown(planned, dollars=None, limit=""):
    gpu_hours = planned.gpu_hours(1e9 / planned.network.tokens)  # for a billion tokens
    return {
        "method": planned.method.settings(),
        "num_gpus": planned.method.world_size,
        "gpu": planned.cluster.gpu.name,
        "gpu_bytes": planned.cluster.gpu.memory,
        "gpu_memory": in_words(planned.cluster.gpu.memory, "bytes"),
        "fits": planned.fits,
        "limit": limit,
        "tokens_per_s": f"{planned.tokens_per_s:,.0f}",
        "mfu": f"{planned.mfu:.0%}",
        "gpu_hours": f"{gpu_hours:,.0f}",
        "price": None if dollars is None else f"${gpu_hours * dollars:,.0f}",
        "peak": _tree(planned.peak),
        "step": _tree(planned.step) | {"leaves": _leaves(planned.step)},
        "memory": _tree(planned.memory),
    }


def _tree(line):
    return {
        "name": line.name,
        "value": line.value,
        "words": in_words(line.value, line.unit),
        "formula": line.formula,
        "source": line.source,
        "parts": [_tree(part) for part in line.parts],
    }


def _leaves(line):
    return [{"name": part.name, "value": value, "words": in_words(value, part.unit)} for part, value in line.leaves()]
