"""LocoTrack (paper arXiv 2407.15420), sizes small and base, written for training.

The parameters carry the state_dict names of the public PyTorch model, and the results are its results; what differs is
the order of the work (the identities are named where they are used):

  * the neighbourhood of a point is never sampled: an 8x8 patch of integer positions is multiplied with the 7x7 support,
    and the bilinear weights are applied to the products (correlate, blend);
  * the first convolution of small's correlation encoder is one matrix product for both of its directions (encoder_matrix);
  * cost_conv is linear, so it is applied to the features once per frame instead of to the cost map of every query, and
    the coarse features are enlarged instead of the coarse cost maps (initial_tracks);
  * only the first 4 of the mixer's 388 outputs are used by anything, so only those are computed.

Shapes: B clips, T frames, N queries, R = B*N*T rows. Video is [B,T,256,256,3] in [-1,1]; queries are [B,N,3] = t,y,x in
pixels, the centre of pixel i at i+0.5; tracks are x,y. Feature grids are [B,T,H,W,C], of unit length along C:
`lowres` 32x32x256, `hires` 64x64x128, `highest` 128x128x64.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

IMAGE = 256
ITERATIONS = 4
TEMPERATURE = 20.0
PATCH = 8               # side of the integer patch behind a 7x7 neighbourhood
TAPS = 49               # points of a 7x7 support
PADDED = 56             # TAPS rounded up so that rows of products are aligned
SIZES = {
    'small': dict(dim=256, heads=4, encoder=((64, 5, 4), (128, 2, 2))),
    'base': dict(dim=384, heads=6, encoder=((64, 3, 2), (128, 3, 2), (128, 2, 2))),
}


def wide(x):
    """Where sums are made: float32, or float64 when the whole model runs in float64 (the test of the mathematics)."""
    return x if x.dtype == torch.float64 else x.float()


# ------------------------------------------------------------------------------------------------- parameters

class Block(nn.Module):
    """Pre-activation residual block."""

    def __init__(self, inputs, outputs, stride, project):
        super().__init__()
        self.stride = stride
        self.bn_0 = nn.InstanceNorm2d(inputs, affine=True)
        self.bn_1 = nn.InstanceNorm2d(outputs, affine=True)
        self.conv_0 = nn.Conv2d(inputs, outputs, 3, stride, bias=False)
        self.conv_1 = nn.Conv2d(outputs, outputs, 3, bias=False)
        self.proj_conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if project else None


class Group(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.blocks = nn.ModuleList([Block(inputs, outputs, stride, True), Block(outputs, outputs, 1, False)])


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.initial_conv = nn.Conv2d(3, 64, 7, 2, bias=False)
        self.block_groups = nn.ModuleList(
            [Group(64, 64, 1), Group(64, 128, 2), Group(128, 256, 2), Group(256, 256, 1)])


class Encoder(nn.Module):
    """Correlation encoder: the 4D correlation [7,7,7,7] read in both directions, 128 numbers each."""

    def __init__(self, layers):
        super().__init__()
        inputs = [TAPS] + [width for width, _, _ in layers[:-1]]
        self.conv = nn.ModuleList([
            nn.Sequential(nn.Conv2d(fan, width, size, stride), nn.GroupNorm(width // 16, width))
            for fan, (width, size, stride) in zip(inputs, layers)])


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query_proj, self.key_proj, self.value_proj, self.final_proj = (nn.Linear(dim, dim) for _ in range(4))


class Transformer(nn.Module):
    def __init__(self, dim, heads, depth=3):
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList([nn.ModuleDict({
            'attn': Attention(dim),
            'dense': nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)),
            'layer_norm1': nn.LayerNorm(dim),
            'layer_norm2': nn.LayerNorm(dim)}) for _ in range(depth)])
        self.ln_out = nn.LayerNorm(dim)


class Mixer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.transformer = Transformer(dim, heads)
        self.input_proj = nn.Linear(854, dim)
        self.output_proj = nn.Linear(dim, 388)


class LocoTrack(nn.Module):
    """The parameters. The mathematics is in the functions below and in Tracker."""

    def __init__(self, size='small'):
        super().__init__()
        shape = SIZES[size]
        self.size = size
        self.resnet_torch = Backbone()
        self.torch_pips_mixer = Mixer(shape['dim'], shape['heads'])
        self.cmdtop = nn.ModuleList([Encoder(shape['encoder']) for _ in range(3)])   # hires, lowres, highest
        self.cost_conv = nn.Conv2d(2, 1, 3)
        self.occ_linear = nn.Linear(6, 2)


# --------------------------------------------------------------------------------------------------- features

def same_padding(size, kernel, stride):
    """Zeros before and after so that the output has ceil(size/stride) places, the odd one after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def conv_same(x, conv, dtype):
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    rows, columns = same_padding(x.shape[2], kernel, stride), same_padding(x.shape[3], kernel, stride)
    bias = None if conv.bias is None else conv.bias.to(dtype)
    return F.conv2d(F.pad(x, columns + rows), conv.weight.to(dtype), bias, stride)


def norm_relu(x, norm, dtype):
    """Instance norm (always of this image) and ReLU, statistics in float32."""
    x = wide(x)
    variance, mean = torch.var_mean(x, dim=(2, 3), keepdim=True, unbiased=False)
    scale = torch.rsqrt(variance + norm.eps) * wide(norm.weight)[None, :, None, None]
    return torch.relu((x - mean) * scale + wide(norm.bias)[None, :, None, None]).to(dtype)


def residual(x, block, dtype):
    h = norm_relu(x, block.bn_0, dtype)
    shortcut = x if block.proj_conv is None else conv_same(h, block.proj_conv, dtype)
    h = norm_relu(conv_same(h, block.conv_0, dtype), block.bn_1, dtype)
    return conv_same(h, block.conv_1, dtype) + shortcut


def unit_length(x, dtype):
    """[F,C,H,W] -> [F,H,W,C] of length one along C."""
    x = wide(x)
    x = x * torch.rsqrt(x.square().sum(1, keepdim=True).clamp(min=1e-12))
    return x.to(dtype).permute(0, 2, 3, 1).contiguous()


def features(backbone, frames, dtype):
    """frames [F,256,256,3] -> lowres, hires, highest, each [F,H,W,C]."""
    x = conv_same(frames.permute(0, 3, 1, 2).to(dtype), backbone.initial_conv, dtype)
    levels = []
    for group in backbone.block_groups:
        for block in group.blocks:
            x = residual(x, block, dtype)
        levels.append(x)
    return unit_length(levels[3], dtype), unit_length(levels[1], dtype), unit_length(levels[0], dtype)


def support(grid, queries):
    """The 7x7 features around each query in its own frame, clamped at the border: [B,N,49,C]."""
    B, T, H, W, C = grid.shape
    N = queries.shape[1]
    steps = torch.arange(-3, 4, device=grid.device).float()
    y = ((queries[..., 1:2] * (H / IMAGE) - 0.5)[..., None] + steps.view(1, 1, 7, 1)).expand(B, N, 7, 7).clamp(0, H - 1)
    x = ((queries[..., 2:3] * (W / IMAGE) - 0.5)[..., None] + steps.view(1, 1, 1, 7)).expand(B, N, 7, 7).clamp(0, W - 1)
    y0, x0 = y.floor(), x.floor()
    fy, fx = (y - y0)[..., None], (x - x0)[..., None]
    y0, x0 = y0.long(), x0.long()
    y1, x1 = (y0 + 1).clamp(max=H - 1), (x0 + 1).clamp(max=W - 1)
    frame = torch.arange(B, device=grid.device).view(B, 1, 1, 1) * T + queries[..., 0].round().long().view(B, N, 1, 1)
    flat = grid.reshape(-1, C)

    def corner(row, column, weight):
        return flat[(frame * H + row) * W + column] * weight.to(grid.dtype)

    total = corner(y0, x0, (1 - fy) * (1 - fx)) + corner(y0, x1, (1 - fy) * fx)
    total = total + corner(y1, x0, fy * (1 - fx)) + corner(y1, x1, fy * fx)
    return total.reshape(B, N, TAPS, C)


# --------------------------------------------------------------------------------------------- initialisation

def filter3(x, kernel):
    """Every channel of x [F,C,H,W] filtered with one 3x3 kernel, zeros outside."""
    H, W = x.shape[2:]
    padded, total = F.pad(x, (1, 1, 1, 1)), None
    for i in range(3):
        for j in range(3):
            term = wide(padded[:, :, i:i + H, j:j + W]) * kernel[i, j]
            total = term if total is None else total + term
    return total.to(x.dtype)


def soft_argmax(heat, W):
    """heat [..., H*W], sums to one -> x, y in cells: the mean of the cells nearer than 5 to the largest."""
    place = torch.arange(heat.shape[-1], device=heat.device)
    x, y = (place % W).float() + 0.5, (place // W).float() + 0.5
    best = torch.argmax(heat.detach(), -1, keepdim=True)
    bx, by = (best % W).float() + 0.5, (best // W).float() + 0.5
    near = heat * (((x - bx) ** 2 + (y - by) ** 2) < 25.0).float()
    total = near.sum(-1).clamp(min=1e-12)
    return torch.stack([(near * x).sum(-1) / total, (near * y).sum(-1) / total], -1)


def initial_tracks(low_query, high_query, low, high, cost_kernel, occ_weight, occ_bias, queries):
    """Tracks from the cost volume. low_query [B,N,256], high_query [B,N,128] are the centres of the supports.

    Returns points [B,N,T,2], occlusion and expected distance (logits) [B,N,T]."""
    B, T, H, W, C = high.shape
    N = low_query.shape[1]
    side = low.shape[2]
    up = F.interpolate(low.reshape(B * T, side, side, -1).permute(0, 3, 1, 2), size=(H, W), mode='bilinear',
                       align_corners=False)
    fine = high.reshape(B * T, H, W, C).permute(0, 3, 1, 2)

    def rows(x):
        return x.permute(0, 2, 3, 1).reshape(B, T * H * W, -1)

    filtered = torch.cat([rows(filter3(up, wide(cost_kernel[0, 0]))), rows(filter3(fine, wide(cost_kernel[0, 1])))],
                         -1)
    cost = torch.bmm(torch.cat([low_query, high_query], -1), filtered.transpose(1, 2)).view(B, N, T, H * W)
    points = soft_argmax(torch.softmax(wide(cost) * TEMPERATURE, -1), W) * (IMAGE / W)
    times = torch.arange(T, device=high.device).float().view(1, 1, T)
    own = (queries[..., 0:1].round() == times)[..., None]
    points = torch.where(own, queries[:, :, None, 1:].flip(-1).expand(B, N, T, 2), points)

    up, fine = rows(up), rows(fine)
    low_cost = torch.bmm(low_query, up.transpose(1, 2)).view(B, N, T, H * W)
    high_cost = torch.bmm(high_query, fine.transpose(1, 2)).view(B, N, T, H * W)
    low_mean = torch.einsum('bnc,btc->bnt', wide(low_query), wide(up.view(B, T, H * W, -1)).mean(2))
    high_mean = torch.einsum('bnc,btc->bnt', wide(high_query), wide(fine.view(B, T, H * W, -1)).mean(2))
    summary = torch.stack([low_mean, high_mean, wide(low_cost.amax(-1)), wide(high_cost.amax(-1)),
                           wide(low_cost.amin(-1)), wide(high_cost.amin(-1))], -1)
    logits = summary @ wide(occ_weight).t() + wide(occ_bias)
    return points, logits[..., 0], logits[..., 1]


# ------------------------------------------------------------------------------------------ local correlation

def correlate_torch(grid, supp, top, left):
    """Products of 8x8 patches of grid [B,T,H,W,C], first row `top` and column `left` (int32 [R], rows ordered b,n,t),
    with supports supp [B,N,49,C], zeros outside the grid: [R, 64*PADDED]."""
    B, T, H, W, C = grid.shape
    N = supp.shape[1]
    steps = torch.arange(PATCH, device=grid.device)
    y = (top.view(B, N, T, 1, 1) + steps.view(1, 1, 1, PATCH, 1)).expand(B, N, T, PATCH, PATCH)
    x = (left.view(B, N, T, 1, 1) + steps.view(1, 1, 1, 1, PATCH)).expand(B, N, T, PATCH, PATCH)
    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
    b = torch.arange(B, device=grid.device).view(B, 1, 1, 1, 1)
    t = torch.arange(T, device=grid.device).view(1, 1, T, 1, 1)
    patch = grid[b, t, y.long().clamp(0, H - 1), x.long().clamp(0, W - 1)] * inside[..., None].to(grid.dtype)
    products = torch.einsum('bnthwc,bnjc->bnthwj', patch, supp)
    return F.pad(products, (0, PADDED - TAPS)).reshape(B * N * T, PATCH * PATCH * PADDED)


if triton is not None:
    # One program per row: a 64 x 64 product (patch positions x support points, 49 of them real) summed over C in
    # steps of STEP channels, float32 accumulators; outputs of the inputs' type.

    @triton.jit
    def _patch(top, left, row, b, t, T, H, W):
        place = tl.arange(0, 64)
        y = tl.load(top + row) + place // 8
        x = tl.load(left + row) + place % 8
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
        return ((b * T + t) * H + y) * W + x, inside

    @triton.jit
    def _forward(grid, supp, top, left, out, N, T, H, W, C: tl.constexpr, STEP: tl.constexpr, PAD: tl.constexpr):
        row = tl.program_id(0)
        bn = row // T
        cell, inside = _patch(top, left, row, bn // N, row % T, T, H, W)
        place, tap = tl.arange(0, 64), tl.arange(0, 64)
        total = tl.zeros((64, 64), dtype=tl.float32)
        for first in tl.static_range(0, C, STEP):
            channel = first + tl.arange(0, STEP)
            p = tl.load(grid + cell[:, None] * C + channel[None, :], mask=inside[:, None], other=0.0)
            s = tl.load(supp + (bn * 49 + tap[:, None]) * C + channel[None, :], mask=(tap < 49)[:, None], other=0.0)
            total += tl.dot(p, tl.trans(s))
        tl.store(out + row * (64 * PAD) + place[:, None] * PAD + tap[None, :], total.to(out.dtype.element_ty),
                 mask=(tap < PAD)[None, :])

    @triton.jit
    def _backward_grid(dout, supp, top, left, dgrid, N, T, H, W, C: tl.constexpr, STEP: tl.constexpr,
                       PAD: tl.constexpr):
        row = tl.program_id(0)
        bn = row // T
        cell, inside = _patch(top, left, row, bn // N, row % T, T, H, W)
        place, tap = tl.arange(0, 64), tl.arange(0, 64)
        d = tl.load(dout + row * (64 * PAD) + place[:, None] * PAD + tap[None, :], mask=(tap < 49)[None, :], other=0.0)
        for first in tl.static_range(0, C, STEP):
            channel = first + tl.arange(0, STEP)
            s = tl.load(supp + (bn * 49 + tap[:, None]) * C + channel[None, :], mask=(tap < 49)[:, None], other=0.0)
            tl.atomic_add(dgrid + cell[:, None] * C + channel[None, :], tl.dot(d, s), mask=inside[:, None],
                          sem='relaxed')

    @triton.jit
    def _backward_support(dout, grid, top, left, dsupp, N, T, H, W, C: tl.constexpr, STEP: tl.constexpr,
                          PAD: tl.constexpr):
        bn = tl.program_id(0)
        channel = tl.program_id(1) * STEP + tl.arange(0, STEP)
        place, tap = tl.arange(0, 64), tl.arange(0, 64)
        total = tl.zeros((64, STEP), dtype=tl.float32)
        for t in range(0, T):
            row = bn * T + t
            cell, inside = _patch(top, left, row, bn // N, t, T, H, W)
            d = tl.load(dout + row * (64 * PAD) + place[:, None] * PAD + tap[None, :], mask=(tap < 49)[None, :],
                        other=0.0)
            p = tl.load(grid + cell[:, None] * C + channel[None, :], mask=inside[:, None], other=0.0)
            total += tl.dot(tl.trans(d), p)
        tl.store(dsupp + (bn * 49 + tap[:, None]) * C + channel[None, :], total.to(dsupp.dtype.element_ty),
                 mask=(tap < 49)[:, None])


class Correlate(torch.autograd.Function):
    """correlate_torch in Triton: bfloat16 on a GPU. The gradient of the grid is summed by float32 atomics."""

    @staticmethod
    def forward(ctx, grid, supp, top, left):
        B, T, H, W, C = grid.shape
        N = supp.shape[1]
        grid, supp = grid.contiguous(), supp.contiguous()
        out = torch.empty(B * N * T, PATCH * PATCH * PADDED, device=grid.device, dtype=grid.dtype)
        _forward[(B * N * T,)](grid, supp, top, left, out, N, T, H, W, C, 64, PADDED, num_warps=4)
        ctx.save_for_backward(grid, supp, top, left)
        return out

    @staticmethod
    def backward(ctx, dout):
        grid, supp, top, left = ctx.saved_tensors
        B, T, H, W, C = grid.shape
        N = supp.shape[1]
        dout = dout.contiguous()
        dgrid = torch.zeros(grid.shape, device=grid.device, dtype=torch.float32)
        dsupp = torch.empty_like(supp)
        _backward_grid[(B * N * T,)](dout, supp, top, left, dgrid, N, T, H, W, C, 64, PADDED, num_warps=4)
        _backward_support[(B * N, C // 64)](dout, grid, top, left, dsupp, N, T, H, W, C, 64, PADDED, num_warps=4)
        return dgrid.to(grid.dtype), dsupp, None, None


def correlate_triton(grid, supp, top, left):
    return Correlate.apply(grid, supp, top, left)


def correlation_errors(device, dtype=torch.bfloat16):
    """Triton against plain, patches over every border: largest relative differences of the values, of the grid's and of
    the support's gradient."""
    g = torch.Generator().manual_seed(3)
    B, T, N, H, W, C = 1, 2, 3, 12, 12, 128
    grid = torch.randn(B, T, H, W, C, generator=g).bfloat16().to(device)
    supp = torch.randn(B, N, 49, C, generator=g).bfloat16().to(device)
    top = torch.tensor([-3, 0, 8, 2, -30, 6], dtype=torch.int32, device=device)
    left = torch.tensor([-2, 8, 3, 30, 1, 0], dtype=torch.int32, device=device)
    upstream = torch.randn(6, 64, 56, generator=g).to(device)
    upstream[..., 49:] = 0
    results = []
    for run, kind in ((correlate_triton, dtype), (correlate_torch, torch.float32)):
        a, s = (x.detach().to(kind).clone().requires_grad_() for x in (grid, supp))
        out = run(a, s, top, left)
        out.backward(upstream.view(6, -1).to(out.dtype))
        results.append([x.float() for x in (out.view(6, 64, 56)[..., :49], a.grad, s.grad)])
    return [float((x - y).abs().max() / y.abs().max()) for x, y in zip(*results)]


def patch_corners(points, side):
    """First row and column (int32 [R]) of the 8x8 patches around points [B,N,T,2] on a grid of `side`, and the
    fractions [R,2] (x, y). Points far outside are clamped: their whole patch lies in the zeros anyway."""
    place = points * (side / IMAGE) - 0.5
    cell = place.floor()
    fraction = (place - cell).reshape(-1, 2).contiguous()
    corner = (cell.clamp(-20, side + 20) - 3).int()
    return corner[..., 1].reshape(-1).contiguous(), corner[..., 0].reshape(-1).contiguous(), fraction


# ------------------------------------------------------------------------------------------------- refinement

def encoder_matrix(conv):
    """small's first encoder convolution (5x5, stride 4, SAME padding (1,1), on 7x7) for both directions of the
    correlation as one matrix [49*PADDED, 512]: rows (hw, ij), columns (direction, channel, y, x)."""
    weight = conv.weight                                                       # 64, 49, 5, 5
    wx = torch.stack([F.pad(weight[..., 1:5], (0, 3)), F.pad(weight[..., 0:4], (3, 0))], 1)     # 64, x, 49, 5, 7
    wy = torch.stack([F.pad(wx[..., 1:5, :], (0, 0, 0, 3)), F.pad(wx[..., 0:4, :], (0, 0, 3, 0))], 1)
    dense = wy.reshape(256, TAPS, TAPS)                                        # (64, y, x), channel, place
    both = torch.cat([dense.transpose(1, 2), dense], 0)                        # channel = ij, then channel = hw
    return F.pad(both, (0, PADDED - TAPS)).reshape(512, TAPS * PADDED).t().contiguous()


def group_norm(x, norm):
    """x [R,C,S], float32."""
    R, C, S = x.shape
    y = wide(x).reshape(R, norm.num_groups, -1)
    variance, mean = torch.var_mean(y, dim=-1, keepdim=True, unbiased=False)
    y = ((y - mean) * torch.rsqrt(variance + norm.eps)).reshape(R, C, S)
    return y * wide(norm.weight)[None, :, None] + wide(norm.bias)[None, :, None]


def blend(products, fraction):
    """Products at 8x8 integer places -> the 7x7 at the fractional point, [R,7,7,PADDED] float32."""
    z = wide(products.view(-1, PATCH, PATCH, PADDED))
    fx, fy = fraction[:, 0].view(-1, 1, 1, 1), fraction[:, 1].view(-1, 1, 1, 1)
    z = z[:, :7] * (1 - fy) + z[:, 1:] * fy
    return z[:, :, :7] * (1 - fx) + z[:, :, 1:] * fx


def encode(encoder, products, fraction, matrix):
    """Products of one level -> its correlation embedding [R,256]. `matrix` is None for base."""
    dtype = products.dtype
    z = blend(products, fraction)
    R = z.shape[0]
    layers = encoder.conv
    if matrix is not None:
        y = wide((z.reshape(R, TAPS * PADDED).to(dtype) @ matrix.to(dtype)).view(R * 2, 64, 4))
        y = torch.relu(group_norm(y + wide(layers[0][0].bias)[None, :, None], layers[0][1])).reshape(R * 2, 256)
        y = wide(y.to(dtype) @ layers[1][0].weight.reshape(128, 256).t().to(dtype)) + wide(layers[1][0].bias)
        return torch.relu(group_norm(y[..., None], layers[1][1])).reshape(R, 256)
    z = z[..., :TAPS].reshape(R, TAPS, TAPS)                                    # hw, ij
    y = torch.stack([z.transpose(1, 2), z], 1).reshape(R * 2, TAPS, 7, 7).to(dtype)
    for conv, norm in layers:
        y = conv_same(y, conv, dtype)
        side = y.shape[2:]
        y = torch.relu(group_norm(y.flatten(2), norm)).view(R * 2, -1, *side).to(dtype)
    return wide(y).mean((2, 3)).reshape(R, 256)


def attention_bias(T, heads, device):
    """[heads,T,T]: half of the heads look back, half forward, with a slope that grows with distance."""
    half = heads // 2
    slope = torch.tensor([24.0 ** (-(i + 1) / half) for i in range(half)], device=device).view(-1, 1, 1)
    away = (torch.arange(T, device=device)[None, :] - torch.arange(T, device=device)[:, None]).float()
    none = torch.full((T, T), -1e9, device=device)
    back = slope * torch.tril(away) + torch.triu(none, 1)
    forward = slope * torch.triu(-away) + torch.tril(none, -1)
    return torch.cat([back, forward], 0)


def linear(layer, x, dtype, rows=None):
    return F.linear(x.to(dtype), layer.weight[:rows].to(dtype), layer.bias[:rows].to(dtype))


def layer_norm(layer, x):
    return F.layer_norm(wide(x), layer.weight.shape, wide(layer.weight), wide(layer.bias), layer.eps)


def mix(mixer, x, bias, dtype, outputs=4):
    """x [R',T,854] -> [R',T,outputs] float32. The residual stream is float32."""
    body = mixer.transformer
    h = wide(linear(mixer.input_proj, x, dtype))
    R, T, D = h.shape
    width = D // body.heads
    for layer in body.layers:
        z, a = layer_norm(layer['layer_norm1'], h).to(dtype), layer['attn']
        q, k, v = (linear(p, z, dtype).view(R, T, body.heads, width).transpose(1, 2)
                   for p in (a.query_proj, a.key_proj, a.value_proj))
        weights = torch.softmax(wide(q @ k.transpose(-1, -2)) * width ** -0.5 + bias, -1).to(dtype)
        h = h + wide(linear(a.final_proj, (weights @ v).transpose(1, 2).reshape(R, T, D), dtype))
        z, dense = layer_norm(layer['layer_norm2'], h).to(dtype), layer['dense']
        h = h + wide(linear(dense[2], F.gelu(linear(dense[0], z, dtype)), dtype))
    return wide(linear(mixer.output_proj, layer_norm(body.ln_out, h), dtype, outputs))


def motion_code(points):
    """Differences to the next and from the previous frame, and their sines of ten octaves: [B,N,T,84]."""
    step = points[..., 1:, :] - points[..., :-1, :]
    both = torch.cat([F.pad(-step, (0, 0, 0, 1)), F.pad(step, (0, 0, 1, 0))], -1) / IMAGE
    octaves = 2.0 ** torch.arange(10, device=points.device).float()
    phase = (both[..., None, :] * octaves[:, None]).reshape(*both.shape[:-1], 40)
    return torch.cat([both, torch.sin(torch.cat([phase, phase + 0.5 * math.pi], -1))], -1)


def mixer_input(encoders, products, matrices, fractions, points, occlusion, distance):
    B, N, T, _ = points.shape
    codes = [encode(encoders[i], products[i], fractions[i], matrices[i]).view(B, N, T, 256) for i in range(3)]
    return torch.cat([occlusion[..., None], distance[..., None]] + codes + [motion_code(points)], -1)


def refine(encoders, mixer, products, matrices, fractions, points, occlusion, distance, bias):
    """One refinement: new points [B,N,T,2], occlusion and expected distance [B,N,T]."""
    B, N, T, _ = points.shape
    x = mixer_input(encoders, products, matrices, fractions, points, occlusion, distance)
    r = mix(mixer, x.reshape(B * N, T, -1), bias, products[0].dtype).view(B, N, T, -1)
    return points + r[..., :2], occlusion + r[..., 2], distance + r[..., 3]


# ------------------------------------------------------------------------------------------------ whole model

class Tracker:
    """Runs a LocoTrack: tracker(video, queries) -> five (points, occlusion, distance), the initialisation first.

    dtype of the matrix work; `compiled` compiles the four stages, or those that it names; `fused` uses the Triton
    correlation (bf16, GPU)."""
    STAGES = 'features', 'support', 'initial', 'refine'

    def __init__(self, model, dtype=torch.float32, compiled=False, fused=False):
        self.model, self.dtype = model, dtype
        self.correlate = correlate_triton if fused else correlate_torch
        compiled = self.STAGES if compiled is True else compiled or ()
        for stage, function in zip(self.STAGES, (features, support, initial_tracks, refine)):
            setattr(self, stage, torch.compile(function, dynamic=False) if stage in compiled else function)
        self.biases = {}

    def grids(self, video):
        B, T = video.shape[:2]
        flat = self.features(self.model.resnet_torch, video.reshape(B * T, IMAGE, IMAGE, 3), self.dtype)
        return [g.view(B, T, *g.shape[1:]) for g in flat]

    def matrices(self):
        if self.model.size != 'small':
            return [None] * 3
        return [encoder_matrix(e.conv[0][0]) for e in self.model.cmdtop]

    def correlations(self, levels, points):
        """levels: (grid, support) for hires, lowres, highest."""
        products, fractions = [], []
        for grid, supp in levels:
            top, left, fraction = patch_corners(points, grid.shape[3])
            products.append(self.correlate(grid, supp, top, left))
            fractions.append(fraction)
        return products, fractions

    def __call__(self, video, queries):
        model, T = self.model, video.shape[1]
        low, high, highest = self.grids(video)
        low_s, high_s, highest_s = (self.support(g, queries) for g in (low, high, highest))
        state = self.initial(low_s[:, :, 24], high_s[:, :, 24], low, high, model.cost_conv.weight,
                             model.occ_linear.weight, model.occ_linear.bias, queries)
        states = [state]
        if T not in self.biases:
            self.biases[T] = attention_bias(T, model.torch_pips_mixer.transformer.heads, video.device)
        matrices = self.matrices()
        for _ in range(ITERATIONS):
            points, occlusion, distance = (s.detach().contiguous() for s in state)      # other strides: another compilation
            products, fractions = self.correlations(((high, high_s), (low, low_s), (highest, highest_s)), points)
            state = self.refine(model.cmdtop, model.torch_pips_mixer, products, matrices, fractions, points, occlusion,
                                distance, self.biases[T])
            states.append(state)
        return states


def hidden(occlusion, distance):
    """1 - confidence: the probability that a point is occluded or more than 6 px off."""
    return 1 - (1 - torch.sigmoid(occlusion)) * (1 - torch.sigmoid(distance))
