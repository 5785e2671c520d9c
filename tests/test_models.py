import torch

from course_utils.models import MLP, LanguageModel


def test_a_language_model_looks_back_only():
    torch.manual_seed(0)
    net = LanguageModel(11, d=16, head_dim=4, max_length=12).double()
    codes = torch.randint(11, (3, 12))
    logits = net(codes)
    assert logits.shape == (3, 12, 11)
    later = codes.clone()
    later[:, 7:] = (later[:, 7:] + 1) % 11
    changed = (net(later) != logits).any(2).any(0)
    assert not changed[:7].any() and changed[7:].all()


def test_a_piece_with_its_positions_is_that_piece():
    torch.manual_seed(0)
    alone = LanguageModel(11, d=16, head_dim=4, max_length=12, attend=lambda q, k, v: v).double()  # tokens do not mix
    codes = torch.randint(11, (3, 12))
    torch.testing.assert_close(alone(codes[:, 5:9], torch.arange(5, 9)), alone(codes)[:, 5:9])
    assert not torch.allclose(alone(codes[:, 5:9]), alone(codes)[:, 5:9])


def test_every_block_has_an_mlp_of_its_own():
    made = []
    net = LanguageModel(11, d=16, head_dim=4, num_blocks=3, make_mlp=lambda: made.append(MLP(16, 8)) or made[-1])
    assert [block.mlp for block in net.blocks] == made and len(set(made)) == 3
