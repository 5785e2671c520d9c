"""Refuses to send objects that work only among the ranks that made them, and says what to send instead.

Some of them can be pickled, and would fail only when used, far from the line that sent them.
"""

_FULL_STATE = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), called on every rank"
_INSTEAD = {  # by name only: torch moves its classes between modules
    "DistributedDataParallel": "its .module",
    "FullyShardedDataParallel": _FULL_STATE,
    "FSDPModule": _FULL_STATE,
    "DTensor": "its .full_tensor(), called on every rank, or its own part, .to_local()",
    "DeviceMesh": "its shape, and make it anew there",
    "ProcessGroup": "the ranks in it, and make it anew there",
    "Work": "what it worked on, after its .wait()",
}


def require_unbound(obj):
    """Raise TypeError, with what to send instead, if `obj` works only among the ranks that made it.

    Accelerate's Accelerator can be sent, but would go on taking each rank for the one process that made it.
    """
    for kind in type(obj).__mro__:
        if kind.__name__ == "Accelerator" and kind.__module__.startswith("accelerate."):
            raise TypeError("an Accelerator works only in the process that made it")
        if kind.__name__ in _INSTEAD and kind.__module__.startswith("torch."):
            raise TypeError(
                f"{kind.__name__} works only among the ranks that made it; pass {_INSTEAD[kind.__name__]}, instead"
            )
