"""A language model whose sequences are split over ranks trains as on one process, and sends what the planner counts."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch
from course_utils.data import load_text
from course_utils.models import LanguageModel
from course_utils.parallel.context import contiguous, ring_attention, zigzag
from course_utils.parallel.messages import Traffic
from course_utils.parallel.tensor import gather_parts, sum_parts
from course_utils.parallel.ulysses import ulysses_attention
from course_utils.planner import Cluster, Method, plan, transformer
from course_utils.planner.collective_costs import Way

STEPS, LENGTH = 3, 29  # which two ranks do not divide
EXACT = dict(rtol=1e-9, atol=1e-12)


# ---- training --------------------------------------------------------------------------------------------------------


def make_model(dtype, **options):
    torch.manual_seed(0)
    return LanguageModel(61, d=16, head_dim=4, max_length=LENGTH, **options).to(dtype)


def train(model, codes, targets, positions, weight):
    """Return the losses and the parameters after STEPS steps; a step's loss is the local sum times `weight`."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(codes, positions=positions).flatten(0, 1), targets.flatten(), reduction="sum")
        optimizer.zero_grad()
        (loss * weight).backward()
        optimizer.step()
        losses.append(loss.detach() * weight)
    own = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.stack(losses), [p.detach() for p in own]


WAYS = (
    (torch.float64, ring_attention, zigzag, "ddp"),
    (torch.float64, ring_attention, contiguous, "fsdp"),
    (torch.float64, ulysses_attention, contiguous, "ddp"),
    (torch.float64, ulysses_attention, zigzag, "fsdp"),
    (torch.float32, ring_attention, zigzag, "fsdp"),
    (torch.float32, ulysses_attention, zigzag, "ddp"),
)


def train_in_all_ways():
    """Compare data × context, in DDP and FSDP2, by ring and by Ulysses, with one process that has the whole batch."""
    mesh, everyone = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context")), init_device_mesh("cpu", (4,))
    row, column = mesh.get_local_rank("data"), mesh.get_local_rank("context")
    codes, targets = load_text().windows(4, LENGTH, seed=1)
    dtypes = torch.float64, torch.float32
    truths = {dtype: train(make_model(dtype), codes, targets, None, 1 / codes.numel()) for dtype in dtypes}
    for dtype, attend, order, wrap in WAYS:
        positions = order(LENGTH, 2)
        attend = partial(attend, positions=positions, causal=True, group=mesh.get_group("context"))
        model = make_model(dtype, attend=attend)
        if wrap == "ddp":
            model = DistributedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block, mesh=everyone)
            fully_shard(model, mesh=everyone)
        mine = slice(2 * row, 2 * row + 2), positions[column]
        weight = 4 / codes.numel()  # DDP and FSDP take the mean over four ranks
        losses, parameters = train(
            model, codes[mine[0]][:, mine[1]], targets[mine[0]][:, mine[1]], positions[column], weight
        )
        dist.all_reduce(losses)
        exactly = EXACT if dtype == torch.float64 else {}
        torch.testing.assert_close([losses / 4, *parameters], [truths[dtype][0], *truths[dtype][1]], **exactly)


def test_data_times_context_trains_as_one_process():
    launch(train_in_all_ways, world_size=4, backend="gloo", timeout=60)


# ---- the planner's bytes ---------------------------------------------------------------------------------------------

HIDDEN, BLOCKS, HEADS, KV_HEADS, TOKENS, BATCH = 16, 3, 4, 2, 24, 2
# A second for each byte and nothing else, so that the planner's seconds are bytes.
BYTES = Cluster("A100-80", inside=1.0, ways=(Way("ring", "Simple", 0, 0, 0),))
NETWORK = transformer(HIDDEN, BLOCKS, HEADS, TOKENS, 61, kv_heads=KV_HEADS, fused_attention=True, element_bytes=4)


def planned(**method):
    """What the planner says that a rank sends in a micro-batch, {line: bytes}."""
    method = Method(precision="fp32", micro_batch=BATCH, overlap=False, **method)
    step = plan(NETWORK, BYTES, method, BATCH).step
    return {line.name: line.value for line in step.all() if line.name.endswith("messages")}


def ring_bytes():
    """Bytes sent forward and backward through the attention of BLOCKS blocks."""
    positions = zigzag(TOKENS, dist.get_world_size())
    own, d = len(positions[dist.get_rank()]), HIDDEN // HEADS
    sent = []
    for _ in range(BLOCKS):
        leaves = [torch.randn(BATCH, n, own, d, requires_grad=True) for n in (HEADS, KV_HEADS, KV_HEADS)]
        with Traffic() as forward:
            o = ring_attention(*leaves, positions, causal=True)
        with Traffic() as backward:
            o.sum().backward()
        sent.append((forward.sent_bytes, backward.sent_bytes))
    return [sum(each) for each in zip(*sent)]


def test_the_ring_sends_the_bytes_that_the_planner_counts():
    for world_size in (1, 2, 3, 4):
        lines = planned(context=world_size)
        counted = [lines.get(f"context's {way} messages", 0) for way in ("forward", "backward")]
        for sent in launch(ring_bytes, world_size=world_size, backend="gloo").results:
            assert sent == counted


def sequence_parallel_bytes():
    """Bytes that rings would send, forward and backward, around the attention and the MLP of BLOCKS blocks."""
    world_size, sent = dist.get_world_size(), []
    x = torch.randn(BATCH, TOKENS // world_size, HIDDEN, requires_grad=True)
    with Traffic() as forward:
        y = x
        for _ in range(2 * BLOCKS):
            y = sum_parts(gather_parts(y))
    with Traffic() as backward:
        y.sum().backward()
    for traffic in (forward, backward):
        # Each half passes all parts but one on; a gather fills the whole, a reduce-scatter one part.
        wholes = [n if "gather" in name else n * world_size for name, n in traffic.collectives]
        sent.append(sum(whole * (world_size - 1) // world_size for whole in wholes))
    return sent


def test_sequence_parallelism_sends_the_bytes_that_the_planner_counts():
    for world_size in (1, 2):
        divided, whole = (planned(tensor=world_size, sequence_parallel=is_divided) for is_divided in (True, False))
        for sent in launch(sequence_parallel_bytes, world_size=world_size, backend="gloo").results:
            assert sent == [divided.get(f"{way} messages", 0) for way in ("forward", "backward")]
            assert sent[0] == whole.get("forward messages", 0), "the all-reduces that it replaces"
