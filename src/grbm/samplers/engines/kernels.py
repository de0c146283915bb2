# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of the walk on a CUDA device, in the coordinates of `cuda.py`: draws, tails, acceptance, swaps."""

import triton
import triton.language as tl

from grbm.core.randomness import ROUNDS

PHILOX_ROUNDS = tl.constexpr(ROUNDS)
LIMIT = tl.constexpr(60000.0)  # standard deviations; float16 ends soon after


@triton.jit
def _words(state, rows, chains, first_unit, draw, BM: tl.constexpr, BN: tl.constexpr):
    """Philox words 0..3 of the counters (BM, BN/4) of BM rows and BN units; ``state`` is (key, chain, draw).

    Rows are ``chains`` chains of the first replica, then those of the next.
    """
    shape: tl.constexpr = (BM, BN // 4)
    c0 = tl.broadcast_to((first_unit // 4 + tl.arange(0, BN // 4))[None, :], shape).to(tl.uint32)
    c1 = tl.broadcast_to((tl.load(state + 1).to(tl.int32) + rows % chains)[:, None], shape).to(tl.uint32)
    c3 = tl.broadcast_to((rows // chains)[:, None], shape).to(tl.uint32)
    c2 = tl.full(shape, 0, tl.uint32) + (tl.load(state + 2).to(tl.int32) + draw).to(tl.uint32)
    return tl.philox(tl.load(state), c0, c1, c2, c3, PHILOX_ROUNDS)


@triton.jit
def _by_unit(w0, w1, w2, w3, BM: tl.constexpr, BN: tl.constexpr):
    """Numbers by counter in the order of their units, 64 j + 16 w + lane: four of (BM, BN/4) -> (BM, BN)."""
    by_counter = tl.join(tl.join(w0, w1), tl.join(w2, w3))  # (BM, 16 j + lane, low bit of w, high bit of w)
    split = tl.reshape(by_counter, (BM, BN // 64, 16, 2, 2))
    return tl.reshape(tl.permute(split, (0, 1, 4, 3, 2)), (BM, BN))


@triton.jit
def _uniform(word):
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def _normals(radius, angle):
    r = tl.sqrt(-2.0 * tl.log(((radius >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10))  # 2^-31
    a = _uniform(angle) * 6.283185307179586
    return r * tl.cos(a), r * tl.sin(a)


@triton.jit
def _drawn(state, rows, chains, draw, BM: tl.constexpr):
    """A uniform number for each of BM rows."""
    word, _, _, _ = _words(state, rows, chains, 0, draw, BM, 64)
    return tl.sum(tl.where((tl.arange(0, 16) == 0)[None, :], _uniform(word), 0.0), 1)


@triton.jit
def _probability(log_ratio):
    return tl.where(log_ratio >= 0, 1.0, tl.where(log_ratio > -87.0, tl.exp(log_ratio), 0.0))  # NaN: 0


@triton.jit
def _draw_hidden(
    logits, beta, state, draw, h, p, part, rows, first, C, chains, M, n_parts,
    KEEP_P: tl.constexpr, PART: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """h ~ Bernoulli(sigmoid(logits)) for a tile (BM, BN), its probabilities, and its ``part`` of a sum over j.

    The sum is that of softplus(ℓ_j) for PART "softplus"; for "drive" that of h_j ℓ_j, where h is drawn at β ℓ; "joint"
    has both, the latter after the C rows of the former.
    """
    units = first + tl.arange(0, BN)
    w0, w1, w2, w3 = _words(state, rows, chains, first, draw, BM, BN)
    tempered = logits * tl.load(beta + rows // chains, rows < C, 0.0)[:, None] if PART == "drive" else logits
    prob = tl.sigmoid(tempered)
    on = _uniform(_by_unit(w0, w1, w2, w3, BM, BN)) < prob
    places = rows[:, None].to(tl.int64) * M + units[None, :]
    inside = (rows[:, None] < C) & (units[None, :] < M)
    tl.store(h + places, tl.where(on, 1.0, 0.0).to(h.dtype.element_ty), inside)
    if KEEP_P:
        tl.store(p + places, prob.to(p.dtype.element_ty), inside)
    if PART == "softplus" or PART == "joint":
        softplus = tl.maximum(logits, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(logits)))
        summed = tl.sum(tl.where(inside, softplus, 0.0), 1)
        tl.store(part + rows * n_parts + first // BN, summed, rows < C)
    if PART == "drive" or PART == "joint":
        summed = tl.sum(tl.where(inside & on, logits, 0.0), 1)
        place = rows + C if PART == "joint" else rows
        tl.store(part + place * n_parts + first // BN, summed, rows < C)


@triton.jit(do_not_specialize=["draw"])
def hidden_tail(
    logits, c, beta, state, draw, h, p, part, C, chains, M, n_parts,
    KEEP_P: tl.constexpr, PART: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """h from products (C, M) that were made elsewhere."""
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units = first + tl.arange(0, BN)
    inside = (rows[:, None] < C) & (units[None, :] < M)
    x = tl.load(logits + rows[:, None].to(tl.int64) * M + units[None, :], inside, 0.0)
    x += tl.load(c + units, units < M, 0.0)[None, :]
    _draw_hidden(x, beta, state, draw, h, p, part, rows, first, C, chains, M, n_parts, KEEP_P, PART, BM, BN)


@triton.jit
def _noise(state, rows, chains, first, draw, BM: tl.constexpr, BN: tl.constexpr):
    """ξ of a tile (BM, BN) of chains and visible units."""
    w0, w1, w2, w3 = _words(state, rows, chains, first, draw, BM, BN)
    z0, z1 = _normals(w0, w1)
    z2, z3 = _normals(w2, w3)
    return _by_unit(z0, z1, z2, z3, BM, BN)


@triton.jit
def _store(new, moved, operand, places, inside):
    """u as it is, and as the next product's operand."""
    tl.store(moved + places, new, inside)
    tl.store(operand + places, tl.clamp(new, -LIMIT, LIMIT).to(operand.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["draw"])
def visible_tail(
    u, d, offset, gain, shrink, noise_std, state, draw, moved, operand, C, chains, N,
    TEMPER: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """u' = m + shrink (u − m) + noise_std ξ (C, N), and its copy as the next product's operand.

    m = d; of replicas m = offset + gain d, each with coefficients of its own (R, N).
    """
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units = first + tl.arange(0, BN)
    inside = (rows[:, None] < C) & (units[None, :] < N)
    places = rows[:, None].to(tl.int64) * N + units[None, :]
    xi = _noise(state, rows, chains, first, draw, BM, BN)
    mean = tl.load(d + places, inside, 0.0)
    if TEMPER:
        own = (rows // chains)[:, None] * N + units[None, :]
        mean = tl.load(offset + own, inside, 0.0) + tl.load(gain + own, inside, 0.0) * mean
        keep, std = tl.load(shrink + own, inside, 0.0), tl.load(noise_std + own, inside, 0.0)
    else:
        keep = tl.load(shrink + units, units < N, 0.0)[None, :]
        std = tl.load(noise_std + units, units < N, 0.0)[None, :]
    _store(mean + keep * (tl.load(u + places, inside, 0.0) - mean) + std * xi, moved, operand, places, inside)


@triton.jit(do_not_specialize=["draw"])
def noise(state, draw, out, C, n, NORMAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """A draw of chains (C, n), normal or uniform."""
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units = first + tl.arange(0, BN)
    if NORMAL:
        drawn = _noise(state, rows, C, first, draw, BM, BN)
    else:
        w0, w1, w2, w3 = _words(state, rows, C, first, draw, BM, BN)
        drawn = _uniform(_by_unit(w0, w1, w2, w3, BM, BN))
    tl.store(out + rows[:, None].to(tl.int64) * n + units[None, :], drawn, (rows[:, None] < C) & (units[None, :] < n))


@triton.jit
def pack(W, var, V, N, M, BM: tl.constexpr, BN: tl.constexpr):
    """V = W/σ (N, M) as an operand."""
    rows, units = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows[:, None] < N) & (units[None, :] < M)
    places = rows[:, None].to(tl.int64) * M + units[None, :]
    sigma = tl.sqrt(tl.load(var + rows, rows < N, 1.0))[:, None]
    packed = tl.load(W + places, inside, 0.0) / sigma
    tl.store(V + places, tl.clamp(packed, -LIMIT, LIMIT).to(V.dtype.element_ty), inside)


@triton.jit
def standardise(v, mu, var, u, operand, C, N, BM: tl.constexpr, BN: tl.constexpr):
    """u = (v − μ)/σ (C, N), and its copy as an operand."""
    rows, units = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows[:, None] < C) & (units[None, :] < N)
    places = rows[:, None].to(tl.int64) * N + units[None, :]
    centre, sigma = tl.load(mu + units, units < N, 0.0), tl.sqrt(tl.load(var + units, units < N, 1.0))
    _store((tl.load(v + places, inside, 0.0) - centre[None, :]) / sigma[None, :], u, operand, places, inside)


@triton.jit
def slope(
    data_uh, chains_uh, data_u, chains_u, data_h, chains_h, W, mu, var, grad, by_row, by_column, a, b, N, M,
    CENTRED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """−∂W (N, M), and in parts what other slopes need of sums over it; a and b make means of sums.

    ``by_row`` (2, S, N) are Σ_j W_ij ∂W_ij, not centred, and Σ_j ∂W_ij m_j; ``by_column`` (T, M) is Σ_i λ_i/σ_i² ∂W_ij.
    """
    rows, units = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    in_v, in_h, inside = rows < N, units < M, (rows[:, None] < N) & (units[None, :] < M)
    places = rows[:, None].to(tl.int64) * M + units[None, :]
    sigma = tl.sqrt(tl.load(var + rows, in_v, 1.0))
    at = tl.load(mu + rows, in_v, 0.0) / sigma
    mean_u, mean_h = a * tl.load(data_u + rows, in_v, 0.0), a * tl.load(data_h + units, in_h, 0.0)
    du = mean_u - b * tl.load(chains_u + rows, in_v, 0.0)
    dh = mean_h - b * tl.load(chains_h + units, in_h, 0.0)
    duh = a * tl.load(data_uh + places, inside, 0.0) - b * tl.load(chains_uh + places, inside, 0.0)
    up = (duh + at[:, None] * dh[None, :]) / sigma[:, None]
    weights = tl.load(W + places, inside, 0.0)
    first = tl.program_id(1) * N + rows
    tl.store(by_row + first, tl.sum(tl.where(inside, weights * up, 0.0), 1), in_v)
    if CENTRED:
        up = (duh - mean_u[:, None] * dh[None, :] - du[:, None] * mean_h[None, :]) / sigma[:, None]
        up = tl.where(inside, up, 0.0)
        tl.store(by_row + tl.num_programs(1) * N + first, tl.sum(up * mean_h[None, :], 1), in_v)
        offset = (at + mean_u) / sigma
        tl.store(by_column + tl.program_id(0) * M + units, tl.sum(offset[:, None] * up, 0), in_h)
    tl.store(grad + places, -up, inside)


@triton.jit
def other_slopes(
    data_u, chains_u, data_u2, chains_u2, data_h, chains_h, mu, var, by_row, by_column,
    grad_b, grad_mu, grad_log_var, mean_h, data_v, chains_v2, a, b, n_data, N, M,
    CENTRED: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradients of b, μ, log σ² by sums of what `slope` left; the data's mean h, sum of v; the chains' mean v²."""
    units = tl.program_id(0) * BN + tl.arange(0, BN)
    in_v, in_h = units < N, units < M
    sigma, centre = tl.sqrt(tl.load(var + units, in_v, 1.0)), tl.load(mu + units, in_v, 0.0)
    sum_u, mean = tl.load(data_u + units, in_v, 0.0), b * tl.load(chains_u + units, in_v, 0.0)
    mean2 = b * tl.load(chains_u2 + units, in_v, 0.0)
    at_data = a * tl.load(data_h + units, in_h, 0.0)
    dh = at_data - b * tl.load(chains_h + units, in_h, 0.0)
    weighted = tl.load(by_row + units, in_v, 0.0)
    moved = tl.load(by_row + N + units, in_v, 0.0) if CENTRED else 0.0
    column = tl.load(by_column + units, in_h, 0.0) if CENTRED else 0.0
    tl.store(grad_mu + units, moved - (a * sum_u - mean) / sigma, in_v)
    tl.store(grad_log_var + units, weighted - 0.5 * (a * tl.load(data_u2 + units, in_v, 0.0) - mean2), in_v)
    tl.store(grad_b + units, column - dh, in_h)
    tl.store(mean_h + units, at_data, in_h)
    tl.store(data_v + units, n_data * centre + sigma * sum_u, in_v)
    tl.store(chains_v2 + units, centre * centre + 2.0 * centre * sigma * mean + sigma * sigma * mean2, in_v)


@triton.jit
def follow(x, grad, rate, factor, broken, least, n, BLOCK: tl.constexpr):
    """x (n,) less rate · factor · grad, but not below ``least``; as it was where ``broken``."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x + places, places < n, 0.0)
    moved = here - tl.load(grad + places, places < n, 0.0) * (tl.load(rate) * tl.load(factor))
    moved = tl.where(moved < least, least, moved)
    tl.store(x + places, tl.where(tl.load(broken) != 0, here, moved), places < n)


@triton.jit
def column_sums(x, sums, squares, n_rows, n, share, SQUARES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Sums over rows of x (n_rows, n), and of its squares, in parts (S, n), each over ``share`` rows."""
    units, first = tl.program_id(1) * BN + tl.arange(0, BN), tl.program_id(0) * share
    total, total2 = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(first, tl.minimum(first + share, n_rows), BM):
        rows = k + tl.arange(0, BM)
        inside = (rows[:, None] < n_rows) & (units[None, :] < n)
        here = tl.load(x + rows[:, None].to(tl.int64) * n + units[None, :], inside, 0.0).to(tl.float32)
        total += here
        total2 += here * here
    places = tl.program_id(0) * n + units
    tl.store(sums + places, tl.sum(total, 0), units < n)
    if SQUARES:
        tl.store(squares + places, tl.sum(total2, 0), units < n)


@triton.jit(do_not_specialize=["draw"])
def walk_on_chip(
    V, c, shrink, noise_std, state, draw, u, operand, h, C, N, M, n_steps, move_rows,
    BM: tl.constexpr, BV: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """All steps of BM chains of a small machine, N <= BV and M <= BH, in half precision; h of the start is given.

    States are ``u`` and ``operand`` (T + 1, C, N) and ``h`` (T + 1, C, M): the start in slot 0, and each step's in the
    next. ``shrink`` and ``noise_std`` are (T, N), or (1, N) with ``move_rows`` 0, else N.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    visible, hidden = tl.arange(0, BV), tl.arange(0, BH)
    in_v, in_h = (rows[:, None] < C) & (visible[None, :] < N), (rows[:, None] < C) & (hidden[None, :] < M)
    at_v, at_h = rows[:, None] * N + visible[None, :], rows[:, None] * M + hidden[None, :]
    up = tl.load(V + visible[:, None] * M + hidden[None, :], (visible[:, None] < N) & (hidden[None, :] < M), 0.0)
    down = tl.load(V + visible[None, :] * M + hidden[:, None], (hidden[:, None] < M) & (visible[None, :] < N), 0.0)
    bias = tl.load(c + hidden, hidden < M, 0.0)[None, :]
    here, on = tl.load(u + at_v, in_v, 0.0), tl.load(h + at_h, in_h, 0.0)
    for t in range(n_steps):
        u += C * N
        operand += C * N
        h += C * M
        keep = tl.load(shrink + t * move_rows + visible, visible < N, 0.0)[None, :]
        std = tl.load(noise_std + t * move_rows + visible, visible < N, 0.0)[None, :]
        d = tl.dot(on, down)
        here = d + keep * (here - d) + std * _noise(state, rows, C, 0, draw + 2 * t, BM, BV)
        half = tl.clamp(here, -LIMIT, LIMIT).to(operand.dtype.element_ty)
        prob = tl.sigmoid(tl.dot(half, up) + bias)
        w0, w1, w2, w3 = _words(state, rows, C, 0, draw + 2 * t + 1, BM, BH)
        on = tl.where(_uniform(_by_unit(w0, w1, w2, w3, BM, BH)) < prob, 1.0, 0.0).to(h.dtype.element_ty)
        tl.store(u + at_v, here, in_v)
        tl.store(operand + at_v, half, in_v)
        tl.store(h + at_h, on, in_h)


LOG_ROOT = tl.constexpr(0.22579135)  # log √(π/2)


@triton.jit
def _exp(x):
    return tl.exp(tl.maximum(x, -87.0))


@triton.jit
def _log_mills(y):
    """log of Φ(−y)/φ(y) less log √(π/2), y >= 0, to 1.2e-7 (the rational approximation of erfcc, Numerical Recipes)."""
    t = 1.0 / (1.0 + 0.35355339059 * y)
    p = 0.17087277 * t - 0.82215223
    p = p * t + 1.48851587
    p = p * t - 1.13520398
    p = p * t + 0.27886807
    p = p * t - 0.18628806
    p = p * t + 0.09678418
    p = p * t + 0.37409196
    p = p * t + 1.00002368
    p = p * t - 1.26551223
    return tl.log(t) + p


@triton.jit
def _log_fall(y, d, from_y):
    """log Φ(−y − d) − log Φ(−y), where ``from_y`` is that of y: in a tail without a difference of large numbers."""
    return _log_mills(y + d) - from_y - y * d - 0.5 * d * d


@triton.jit
def _distribution(x):
    """Φ, within 13 deviations."""
    y = tl.minimum(tl.abs(x), 13.0)
    half = _exp(_log_mills(y) + LOG_ROOT - 0.91893853 - 0.5 * y * y)
    return tl.where(x < 0.0, half, 1.0 - half)


@triton.jit
def _truncated(m, s, low, high, u):
    """N(m, s²) between low and high by inversion at u in [0, 1): the definition is `truncated_normal`.

    Where the interval lies in a tail, its end nearer to m is −y, and what is solved for is the distance d beyond it;
    else y is 0, and d a distance from m.
    """
    a, b, w = (low - m) / s, (high - m) / s, 1.0 - u - 1.4901161193847656e-08  # 2^-26
    flip = a + b > 0.0  # NaN, of an interval without ends, is not
    far, near = tl.where(flip, -b, a), tl.where(flip, -a, b)
    tail = near < 0.0
    y = tl.where(tail, -near, 0.0)
    from_y = _log_mills(y)
    width = tl.where(near - far < 1e4, near - far, 1e4)  # infinite ones too
    in_tail = 1.0 - w * (1.0 - _exp(_log_fall(y, width, from_y)))
    p = _distribution(near)
    gap = w * (p - _distribution(far))
    above, below = _distribution(-near) + gap, p - gap
    up = above < below
    share = tl.log(tl.maximum(tl.where(tail, in_tail, 2.0 * tl.where(up, above, below)), 1e-30))
    share = tl.minimum(share, 0.0)
    d = -2.0 * share / (y + tl.sqrt(y * y - 2.0 * share) + 1e-30)
    for _ in tl.static_range(3):  # Newton
        step = (_log_fall(y, d, from_y) - share) * _exp(_log_mills(y + d) + LOG_ROOT)
        d = tl.maximum(d + step, 0.0)
    in_middle = m + s * tl.where(flip ^ up, d, -d)
    v = tl.where(tail, tl.where(flip, low + s * d, high - s * d), in_middle)
    return tl.minimum(tl.maximum(v, low), high)


@triton.jit(do_not_specialize=["draw"])
def given_tail(
    d, y, share, std, low, high, state, draw, mean, u, operand, C, N,
    WITHIN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """u (C, N) of chains under measurements y, its ``mean`` d + share (y − d), and u as the next product's operand.

    Normal with a deviation of its own in every chain, and WITHIN intervals truncated to them.
    """
    rows, first = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN
    units = first + tl.arange(0, BN)
    inside = (rows[:, None] < C) & (units[None, :] < N)
    places = rows[:, None].to(tl.int64) * N + units[None, :]
    drive, known = tl.load(d + places, inside, 0.0), tl.load(y + places, inside, 0.0)
    part, s = tl.load(share + places, inside, 0.0), tl.load(std + places, inside, 0.0)
    m = tl.where(part < 0.5, drive + part * (known - drive), known - (1.0 - part) * (known - drive))  # y at 1
    if WITHIN:
        w0, w1, w2, w3 = _words(state, rows, C, first, draw, BM, BN)
        ends = tl.load(low + places, inside, -1.0), tl.load(high + places, inside, 1.0)
        drawn = _truncated(m, tl.where(s > 0.0, s, 1.0), ends[0], ends[1], _uniform(_by_unit(w0, w1, w2, w3, BM, BN)))
        new = tl.where(s > 0.0, drawn, m)
    else:
        new = m + s * _noise(state, rows, C, first, draw, BM, BN)
    tl.store(mean + places, m, inside)
    _store(new, u, operand, places, inside)


@triton.jit(do_not_specialize=["draw"])
def acceptance(
    u, moved, d, moved_d, softplus, moved_softplus, more, shrink, noise_std, state, draw, prob, taken, temperature,
    C, N, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """With what probability each chain takes its move from u, drawn by ``draw``, and whether it does (Eq. 12).

    ``more`` (C,) is added to the logarithm of the ratio.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    falls = tl.load(moved_softplus + rows, rows < C, 0.0) - tl.load(softplus + rows, rows < C, 0.0)  # F(u) − F(u')
    log_q = tl.zeros((BM,), tl.float32)
    for first in range(0, N, BN):
        units = first + tl.arange(0, BN)
        inside = (rows[:, None] < C) & (units[None, :] < N)
        places = rows[:, None].to(tl.int64) * N + units[None, :]
        old, new = tl.load(u + places, inside, 0.0), tl.load(moved + places, inside, 0.0)
        keep = tl.load(shrink + units, units < N, 0.0)[None, :]
        std = tl.load(noise_std + units, units < N, 1.0)[None, :]
        drive = tl.load(moved_d + places, inside, 0.0)
        there, back = _noise(state, rows, C, first, draw, BM, BN), (old - (drive + keep * (new - drive))) / std
        log_q += 0.5 * tl.sum(tl.where(inside, there * there - back * back, 0.0), 1)
        falls += 0.5 * tl.sum(old * old - new * new, 1)
    probability = _probability(falls / temperature + log_q + tl.load(more + rows, rows < C, 0.0))
    tl.store(prob + rows, probability, rows < C)
    tl.store(taken + rows, _drawn(state, rows, C, draw + 2, BM) < probability, rows < C)


@triton.jit
def differences(u, stretch, shift, part, difference, C, N, n_parts, BM: tl.constexpr, BN: tl.constexpr):
    """D = E_1 − E_0 by row, E_1 = ½ |u|² − Σ of ``part`` and E_0 = ½ |stretch u + shift|²."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    for first in range(0, N, BN):
        units = first + tl.arange(0, BN)
        inside = (rows[:, None] < C) & (units[None, :] < N)
        one = tl.load(u + rows[:, None].to(tl.int64) * N + units[None, :], inside, 0.0)
        zero = tl.load(stretch + units, units < N, 0.0)[None, :] * one + tl.load(shift + units, units < N, 0.0)[None, :]
        total += 0.5 * tl.sum(one * one - zero * zero, 1)
    for k in range(n_parts):
        total -= tl.load(part + rows * n_parts + k, rows < C, 0.0)
    tl.store(difference + rows, total, rows < C)


@triton.jit(do_not_specialize=["draw"])
def swap(difference, gaps, state, draw, order, accepted, chains, R, BM: tl.constexpr):
    """Which row each replica's state comes from (R, chains): neighbours swap, even pairs, then odd ones.

    The probabilities are added to ``accepted`` in units of 2^-30.
    """
    own = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = own < chains
    for r in range(R):
        tl.store(order + r * chains + own, r * chains + own, inside)
    for first in tl.static_range(2):
        for r in range(first, R - 1, 2):
            tl.debug_barrier()
            low = r * chains + own
            high = low + chains
            d_low, d_high = tl.load(difference + low, inside, 0.0), tl.load(difference + high, inside, 0.0)
            probability = _probability(tl.load(gaps + r) * (d_high - d_low))
            taken = _drawn(state, low, chains, draw + first, BM) < probability
            from_low, from_high = tl.load(order + low, inside, 0), tl.load(order + high, inside, 0)
            tl.store(difference + low, tl.where(taken, d_high, d_low), inside)
            tl.store(difference + high, tl.where(taken, d_low, d_high), inside)
            tl.store(order + low, tl.where(taken, from_high, from_low), inside)
            tl.store(order + high, tl.where(taken, from_low, from_high), inside)
            counted = (probability.to(tl.float64) * 1073741824.0 + 0.5).to(tl.int64)
            tl.store(accepted + low, tl.load(accepted + low, inside, 0) + counted, inside)
