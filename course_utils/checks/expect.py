"""What checks compare an answer with, and how they describe the difference.

    with case("with 3 ranks"), unchanged(x=x):
        y = answer(x)
    explain(expect_tensor(y, like=truth), truth, {"the bias is missing": truth - bias})

Each function raises `Wrong`. Its message describes the symptom and where to look, never the right answer.
"""

import contextlib
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .described import has_numbers, is_tensor, not_a, short

if TYPE_CHECKING:
    import torch

EQUAL = 1e-9  # reordering a correct float64 sum changes it by less


class Wrong(Exception):
    """The answer is wrong; the message describes the symptom and where to look."""

    def __init__(self, reason: str, *where: str) -> None:
        super().__init__(reason, *where)
        self.reason, self.where = reason, where

    def __str__(self):
        return f"{', '.join(self.where)}: {self.reason}" if self.where else self.reason


@contextlib.contextmanager
def case(text: str) -> Iterator[None]:
    """Prefix every Wrong raised in this block with `text`; texts of outer blocks come first.

    Other exceptions get `text` as a note at the end of their traceback.
    """
    try:
        yield
    except Wrong as wrong:
        raise Wrong(wrong.reason, text, *wrong.where) from None
    except Exception as error:
        error.add_note(f"({text})")
        raise


def expect(condition: object, reason: str) -> None:
    """Raise Wrong(reason) unless `condition` holds."""
    if not condition:
        raise Wrong(reason)


def expect_function(answer: object) -> None:
    """Raise Wrong unless `answer` can be called."""
    expect(callable(answer), f"check was given {short(answer)}: give it your function's name, without calling it")


# ---- what came back ------------------------------------------------------------------------------------------------


def _expect_something(value, what):
    is_all = what in ("the answer", "what came back") or what.endswith(" returned")
    expect(value is not None, f"{what} is None" + (": is it returned, or only printed?" if is_all else ""))


def expect_number(value: Any, what: str = "the answer") -> float:
    """Return `value` as a Python number; it may be a number, or a NumPy array or tensor without dimensions."""
    _expect_something(value, what)
    if (
        not isinstance(value, numbers.Number)
        and getattr(value, "shape", None) == ()
        and (not is_tensor(value) or has_numbers(value))
    ):
        value = value.item()  # NumPy's or a tensor's
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    expect(is_number, f"{what} is {not_a(value, 'a number')}")
    expect(not math.isnan(value), f"{what} is nan, which is no number")
    return value


def expect_whole(value: Any, what: str = "the answer") -> int:
    """Return `value` as an int; raise Wrong for a float, even a whole one such as 3.0."""
    value = expect_number(value, what)
    expect(
        isinstance(value, numbers.Integral),
        f"{what} is {value!r}, not a whole number (of two whole numbers // gives one, and / does not)",
    )
    return int(value)


def expect_row(value: Any, length: int | None, what: str = "the answer", of: str = "") -> list[Any]:
    """Return `value` as a list; raise Wrong unless it is a list or tuple of `length` items (None: any length).

    `of` names the items in the message.
    """
    _expect_something(value, what)
    kind = f"a list or tuple of {of}" if of else "a list or tuple"
    expect(isinstance(value, (list, tuple)), f"{what} is {not_a(value, kind)}")
    expect(length in (None, len(value)), f"{what} holds {len(value)} items, not {length}{of and f' ({of})'}")
    return list(value)


def expect_tensor(value: Any, like: "torch.Tensor", what: str = "the answer", device: bool = True) -> "torch.Tensor":
    """Return `value`, detached; raise Wrong unless it is a finite tensor with the shape and dtype of `like`.

    With `device`, its device must match, too.
    """
    _expect_something(value, what)
    expect(is_tensor(value), f"{what} is {not_a(value, 'a tensor')}")
    expect(value.shape == like.shape, f"{what} has shape {tuple(value.shape)}, and should have {tuple(like.shape)}")
    expect(value.dtype == like.dtype, f"{what} is {_name(value.dtype)}, and should be {_name(like.dtype)}")
    expect(not device or value.device == like.device, f"{what} is on {value.device}, and should be on {like.device}")
    value = value.detach()
    is_finite = not has_numbers(value) or value.isfinite().all() or not like.isfinite().all()
    expect(is_finite, f"{what} holds inf or nan")
    return value


def expect_error(kind: type[Exception], call: Callable[[], object], *, naming: Iterable[object] = ()) -> None:
    """Expect `call()` to raise `kind` or a subclass of it, with a message that contains each of `naming`."""
    try:
        answer = call()
    except kind as error:
        if isinstance(error, NotImplementedError) and not str(error):
            raise  # from an unfilled stub
        missing = [str(name) for name in naming if str(name) not in str(error)]
        expect(
            not missing,
            f"the {kind.__name__} says {str(error)!r}; whoever reads it wants to know {' and '.join(missing)} too",
        )
        return
    except (NotImplementedError, Wrong):
        raise
    except Exception as error:  # the answer may raise anything
        raise Wrong(
            f"it raised {type(error).__name__} ({error}), and a {kind.__name__} that says why is asked"
        ) from None
    raise Wrong(f"{short(answer)} came back, and a {kind.__name__} should be raised")


# ---- is it right? --------------------------------------------------------------------------------------------------


def explain(
    got: Any,
    truth: Any,
    suspects: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    said: str | None = None,
    otherwise: str = "",
    close: float = EQUAL,
) -> None:
    """Return if `got` equals `truth`; else raise Wrong with `said` and the reason of the suspect that `got` equals.

    `got` and `truth` are numbers, tensors, or lists of these. `suspects` is {reason: the result of that mistake, or a
    function that computes it}; suspects equal to the truth are skipped. `said` is by default the difference;
    `otherwise` follows it if no suspect matches.
    """
    if same(got, truth, close):
        return
    said = said or _apart(got, truth)
    for reason, suspect in dict(suspects).items():
        suspect = suspect() if callable(suspect) else suspect
        if suspect is not None and same(got, suspect, close) and not same(suspect, truth, close):
            raise Wrong(f"{said}: {reason}")
    raise Wrong(f"{said}: {otherwise}" if otherwise else said)


def expect_finite(value: Any, what: str, why: str) -> None:
    """Raise Wrong, which says that `what` holds inf or nan and `why`, if a tensor of floating-point numbers does."""
    is_number = is_tensor(value) and value.is_floating_point()
    expect(not is_number or bool(value.isfinite().all()), f"{what} holds inf or nan: {why}")


def same(a: Any, b: Any, close: float = EQUAL) -> bool:
    """Return whether two numbers, tensors or lists of these differ by less than `close`.

    For tensors, `close` is multiplied by the largest finite absolute value in `b`, if that is above 1; for numbers it
    is relative. Infinities must be the same.
    """
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        are_rows = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b)
        return are_rows and all(same(x, y, close) for x, y in zip(a, b))
    if is_tensor(a) and is_tensor(b):
        finite = b[b.isfinite()] + 0  # abs() refuses True and False
        largest = finite.abs().max().item() if len(finite) else 0
        return a.shape == b.shape and _difference(a, b) <= close * max(1.0, largest)
    if not (isinstance(a, numbers.Real) and isinstance(b, numbers.Real)):
        return a is b or (not is_tensor(a) and not is_tensor(b) and a == b)
    least = min(1.0, abs(b))  # type: ignore[call-overload]  # real numbers have an order, which `Real` does not say
    return a == b or math.isclose(a, b, rel_tol=close, abs_tol=close * least)


def max_difference(a: "torch.Tensor | Sequence[torch.Tensor]", b: "torch.Tensor | Sequence[torch.Tensor]") -> float:
    """Return the largest absolute difference between two tensors, or two lists of tensors, as a float.

    It is infinite if a difference is NaN. Raises Wrong if shapes or lengths differ.
    """
    a, b = ([x] if is_tensor(x) else x for x in (a, b))
    expect(len(a) == len(b), f"{len(a)} tensors came back where {len(b)} were expected")
    for ours, theirs in zip(a, b):
        expect(ours.shape == theirs.shape, f"a tensor has shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}")
    return max([0.0, *(_difference(ours, theirs) for ours, theirs in zip(a, b))])


def _difference(a, b):
    if not a.numel():
        return 0.0
    if not (a.is_floating_point() or b.is_floating_point()):
        return float((a != b).any() and (a.double() - b.double()).abs().max().clamp(min=1e-300))
    apart = (a - b).abs().masked_fill(a == b, 0).max().item()  # ∞ − ∞ is NaN
    return math.inf if apart != apart else apart  # max() could drop a NaN


def _apart(got, truth):
    ours, theirs = (x if isinstance(x, (list, tuple)) else [x] for x in (got, truth))
    if len(ours) == len(theirs) and all(
        is_tensor(x) and is_tensor(y) and x.shape == y.shape for x, y in zip(ours, theirs)
    ):
        return f"that is not right (max difference {max_difference(got, truth):.2g})"
    return f"{short(got)} is not right"


# ---- what was given ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unchanged(*, allow: Collection[str] = (), **given: object) -> Iterator[None]:
    """Raise Wrong if anything in `given`, {name: tensor, module, list, dict or plain value}, changes in this block.

    Compared are values, shapes, dtypes, flags and gradients of tensors, modes and hooks of modules, and items of lists
    and dicts. `allow` names what may change: "values", "grad", "requires_grad", "mode" or "hooks". PyTorch's own state
    must not change either: grad mode, default dtype and device, autocast.
    """
    before = {name: dict(_facts(value, name)) for name, value in given.items()}
    modes = _modes()
    yield
    for name, value in given.items():
        after = dict(_facts(value, name))
        for fact in [*before[name], *(fact for fact in after if fact not in before[name])]:
            kind, where = fact
            if kind not in allow and not _is_same_fact(before[name].get(fact), after.get(fact)):
                raise Wrong(_CHANGES[kind].format(where) + ": what was given belongs to the caller")
    for name, now in _modes().items():
        expect(now == modes[name], f"{name} is {now} afterwards, and was {modes[name]}: put it back")


_CHANGES = {
    "values": "{} was changed in place",
    "kind": "{} has another shape or dtype, or is another object",
    "requires_grad": "{}.requires_grad was changed",
    "grad": "{}.grad was changed",
    "items": "{} holds other items",
    "mode": "{} is in another mode: train() or eval() was left switched",
    "hooks": "a hook was left on {}",
    "value": "{} was changed",
}


def _facts(value, name):
    """Yield ((kind, where), fact) for everything that is compared about `value`."""
    from torch import nn

    if is_tensor(value):
        yield ("kind", name), (id(value), value.shape, value.dtype, value.device)
        yield ("requires_grad", name), value.requires_grad
        yield ("values", name), value.detach().clone()
        yield ("grad", name), value.grad.detach().clone() if value.is_leaf and value.grad is not None else None
    elif isinstance(value, nn.Module):
        for part, module in value.named_modules():
            yield ("mode", f"{name}.{part}" if part else name), module.training
            yield ("hooks", f"{name}.{part}" if part else name), _num_hooks(module)
        for part, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield from _facts(tensor, f"{name}.{part}")
    elif isinstance(value, (list, tuple, dict)):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        yield ("items", name), [(key, id(item)) for key, item in items]
        for key, item in items:
            yield from _facts(item, f"{name}[{key!r}]")
    elif hasattr(value, "tobytes"):  # NumPy's
        yield ("value", name), (value.dtype, value.shape, value.tobytes())
    elif isinstance(value, (str, bytes, numbers.Number, type(None))):
        yield ("value", name), value


def _num_hooks(module):
    return sum(len(hooks) for key, hooks in vars(module).items() if key.endswith("_hooks") and isinstance(hooks, dict))


def _is_same_fact(a, b):
    import torch

    if is_tensor(a) and is_tensor(b):
        if (a.shape, a.dtype) != (b.shape, b.dtype) or not (has_numbers(a) and has_numbers(b)):
            return (a.shape, a.dtype) == (b.shape, b.dtype)
        return torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    return not (is_tensor(a) or is_tensor(b)) and a == b


def _modes():
    import torch

    return {
        "grad mode": torch.is_grad_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def _name(dtype):
    return str(dtype).removeprefix("torch.")
