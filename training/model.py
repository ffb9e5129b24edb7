"""The model as a differentiable program, written from the specification: a second implementation beside the engine,
and the one that is trained. Parameters of all layers of a kind lie in one tensor with the layer as first axis, so
that quantisation and the optimiser handle a kind at once. Values are those of the engine up to the order of fp32
sums: weights, activations and caches are fake-quantised with straight-through gradients.

`Model.forward` runs whole sequences [B, S]. A Probe sees (and may replace) what passes between the layers;
check_golden.py uses it, training does not. draft.py holds the draft layers, train.py the losses."""

import torch
from torch import nn

from engram import Hasher, tables
from numerics import (
    EPS,
    fp4_weight,
    fp8_rows,
    fp8_weight,
    quantise_activation,
    quantise_compressed,
    quantise_index,
    rms_norm,
    rope_frequencies,
    rope_table,
    rotate,
    sinkhorn,
)

FUSED = {}  # function -> compiled version; empty: everything runs eagerly


def fused(function):
    """Marks a function of tensors that train.py may compile; the same compiled code serves every layer."""

    def call(*args, **kwargs):
        return FUSED.get(call, function)(*args, **kwargs)

    call.plain = function
    fused.all.append(call)
    return call


fused.all = []


def compile_fused(**options):
    for call in fused.all:
        FUSED[call] = torch.compile(call.plain, dynamic=False, **options)


# ---- the parts of a layer ----------------------------------------------------------------------------------


@fused
def mix(streams, fn, base, scale, iterations, eps, exact):
    """mHC coefficients of a site from its input streams [T, hc, D]: pre, post [T, hc], comb [T, hc, hc], fp32."""
    hc = streams.shape[-2]
    wide = streams.float().flatten(-2)
    coefficients = nn.functional.linear(wide, fn) * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    pre = torch.sigmoid(coefficients[:, :hc] * scale[0] + base[:hc]) + eps
    post = 2 * torch.sigmoid(coefficients[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    rows = (coefficients[:, 2 * hc :] * scale[2] + base[2 * hc :]).unflatten(-1, (hc, hc))
    return pre, post, sinkhorn(rows, iterations, eps, exact)


@fused
def collapse(streams, pre):
    return (pre.unsqueeze(-1) * streams.float()).sum(-2).bfloat16()


@fused
def collapse_norm(streams, pre, weight):
    """The normalised input of a sublayer, and the same as its FP8 linears read it."""
    normed = rms_norm((pre.unsqueeze(-1) * streams.float()).sum(-2).bfloat16(), weight)
    return normed, quantise_activation(normed)


@fused
def expand(streams, update, post, comb):
    """X'[k] = post[k] y + sum_j comb[j][k] X[j], over the first index."""
    carried = (comb.unsqueeze(-1) * streams.float().unsqueeze(-2)).sum(-3)
    return (post.unsqueeze(-1) * update.float().unsqueeze(-2) + carried).bfloat16()


@fused
def queries(quantised, wq_a, q_norm, wq_b, cos, sin, heads):
    """qr [T, q_lora] as the indexer reads it too (quantised), and the rotated queries [T, heads, d]."""
    latent = quantise_activation(rms_norm(nn.functional.linear(quantised, wq_a), q_norm))
    query = nn.functional.linear(latent, wq_b).unflatten(-1, (heads, -1))
    return latent, rotate(query, cos.unsqueeze(-2), sin.unsqueeze(-2))


@fused
def window_row(quantised, wkv, kv_norm, cos, sin):
    return quantise_activation(rotate(rms_norm(nn.functional.linear(quantised, wkv), kv_norm), cos, sin))


@fused
def project_out(attended, cos, sin, wo_a, wo_b, groups):
    """[T, heads, d] back through the inverse rotation and the grouped projections to [T, D]."""
    turned = rotate(attended, cos.unsqueeze(-2), -sin.unsqueeze(-2))
    grouped = turned.flatten(-2).unflatten(-1, (groups, -1)).transpose(0, 1)  # [groups, T, inputs]
    low = torch.bmm(grouped, wo_a.unflatten(0, (groups, -1)).transpose(1, 2)).transpose(0, 1).flatten(-2)
    return nn.functional.linear(quantise_activation(low), wo_b)


def softmax_parts(scores, parts, sink):
    """Unnormalised bf16 probabilities of lists of scores [..., heads, entries] (-inf: absent), and the denominator.
    `parts` are further score lists of the same queries; the sink enters the denominator only."""
    lists = [scores, *parts]
    largest = torch.stack([part.amax(-1) for part in lists]).amax(0).clamp(min=-1e30).detach().unsqueeze(-1)
    weights = [torch.exp(part - largest) for part in lists]
    total = sum(part.sum(-1, keepdim=True) for part in weights) + torch.exp(sink.unsqueeze(-1) - largest)
    return [part.bfloat16() for part in weights], total


def weighted(weights, values, exact):
    """Sum of values by bf16 weights; `exact` keeps the sum in fp32, as the engine does."""
    return weights.float() @ values.float() if exact else (weights @ values).float()


def fold_window(rows, window):
    """[B, S, d] (S a multiple of the window) to [B, S/window, 2 window, d]: each chunk behind its predecessor."""
    chunks = rows.unflatten(1, (-1, window))
    return torch.cat([nn.functional.pad(chunks, (0, 0, 0, 0, 1, 0))[:, :-1], chunks], 2)


def window_mask(num_chunks, window, device):
    """[chunks, window, 2 window]: which folded rows a query of a chunk sees."""
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(2 * window, device=device)[None]
    seen = (key > query) & (key <= query + window)
    first = torch.arange(num_chunks, device=device)[:, None, None] == 0
    return seen & ~(first & (key < window))


def window_scores(query, rows, window):
    """Scores of [B, S, heads, d] against each query's window: fp32 [B, S, heads, 2 window], and the folded rows."""
    batch, length, heads, width = query.shape
    folded = fold_window(rows, window)
    flat = query.float().reshape(batch, length // window, window * heads, width)
    scores = (flat @ folded.float().transpose(-1, -2)) * width**-0.5
    scores = scores.unflatten(2, (window, heads))
    seen = window_mask(length // window, window, query.device)
    scores = scores.masked_fill(~seen[None, :, :, None], float('-inf'))
    return scores.flatten(1, 2), folded


def window_sum(weights, folded, window, exact):
    flat = weights.unflatten(1, (-1, window)).flatten(2, 3)  # [B, chunks, window heads, 2 window]
    return weighted(flat, folded, exact).unflatten(2, (window, -1)).flatten(1, 2)


@fused
def attend_window(query, rows, sink, window, exact):
    scores, folded = window_scores(query, rows, window)
    (weights,), total = softmax_parts(scores, [], sink)
    return (window_sum(weights, folded, window, exact) / total).bfloat16()


@fused
def attend_all(query, rows, compressed, seen, sink, window, exact):
    """Window and every group that `seen` [B, S, G] shows. Also the attention mass on each group, averaged over the
    heads."""
    scores, folded = window_scores(query, rows, window)
    wide = (query.float().flatten(1, 2) @ compressed.float().transpose(-1, -2)) * query.shape[-1] ** -0.5
    wide = wide.unflatten(1, (query.shape[1], -1)).masked_fill(~seen.unsqueeze(2), float('-inf'))
    (near, far), total = softmax_parts(scores, [wide], sink)
    summed = window_sum(near, folded, window, exact)
    summed = summed + weighted(far.flatten(1, 2), compressed, exact).unflatten(1, (query.shape[1], -1))
    mass = (far.detach().float() / total.detach()).mean(2)
    return (summed / total).bfloat16(), mass


@fused
def attend_selected(query, rows, selected, absent, sink, window, exact):
    """Window and the selected rows [B, S, k, d]; `absent` [B, S, k] marks places without a group."""
    scores, folded = window_scores(query, rows, window)
    far = (query.float() @ selected.float().transpose(-1, -2)) * query.shape[-1] ** -0.5
    far = far.masked_fill(absent.unsqueeze(2), float('-inf'))
    (near, far), total = softmax_parts(scores, [far], sink)
    summed = window_sum(near, folded, window, exact) + weighted(far, selected, exact)
    mass = (far.detach().float() / total.detach()).mean(2)
    return (summed / total).bfloat16(), mass


@fused
def experts(normed, quantised, gate, bias, w13, w2, top_k, factor, limit, exact):
    """Router, routed experts and the shared one, all computed for every token and weighted with zero where not
    chosen: one product in, one out, one rounding. w13 [2, E+1, I, D], w2 [D, (E+1) I]; the shared expert is the last.
    """
    logits = nn.functional.linear(normed.float(), gate.bfloat16().float())
    scores = torch.sqrt(nn.functional.softplus(logits).clamp(min=1e-30))
    order = (scores + bias).detach()
    if exact:
        chosen = torch.sort(order, dim=-1, descending=True, stable=True).indices[:, :top_k]
    else:
        chosen = torch.topk(order, top_k, -1, sorted=False).indices
    picked = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
    weights = scores * picked
    weights = weights / (weights.sum(-1, keepdim=True) + EPS) * factor
    hidden = nn.functional.linear(quantised, w13.flatten(0, 2)).float().unflatten(-1, w13.shape[:3])
    gated, up = hidden[:, 0].clamp(max=limit), hidden[:, 1].clamp(-limit, limit)
    route = torch.cat([weights, torch.ones_like(weights[:, :1])], -1)
    inner = (route.unsqueeze(-1) * (gated * torch.sigmoid(gated) * up)).bfloat16().flatten(-2)
    return nn.functional.linear(quantise_activation(inner), w2), picked, weights


@fused
def compress(normed, wkv, wgate, norm, cos, sin, ratio):
    """Latents [B, G, d] of whole groups before the rotation, and the rows as cached. normed [B, S, D]."""
    if ratio == 1:
        joined = nn.functional.linear(normed, wkv.bfloat16())
    else:
        even = normed.float()[:, : normed.shape[1] // 2 * 2]
        keys = nn.functional.linear(even, wkv.bfloat16().float()).unflatten(1, (-1, 2))
        gates = nn.functional.linear(even, wgate.bfloat16().float()).unflatten(1, (-1, 2))
        joined = (torch.softmax(gates, 2) * keys).sum(2).bfloat16()
    latent = rms_norm(joined, norm)
    return latent, quantise_compressed(rotate(latent, cos, sin))


@fused
def index_keys(latent, wk, k_norm, cos, sin):
    return quantise_index(rotate(rms_norm(nn.functional.linear(latent, wk.bfloat16()), k_norm), cos, sin))


@fused
def index_queries(latent, normed, wq_b, weights_proj, cos, sin, heads):
    """Quantised queries [T, heads, d] and the heads' weights [T, heads] bf16."""
    query = nn.functional.linear(latent, wq_b).unflatten(-1, (heads, -1))
    query = quantise_index(rotate(query, cos.unsqueeze(-2), sin.unsqueeze(-2)))
    weights = nn.functional.linear(normed, weights_proj.bfloat16())
    return query, (weights.float() * (query.shape[-1] ** -0.5 * heads**-0.5)).bfloat16()


@fused
def index_scores(query, weights, keys):
    """[B, S, heads, d] against [B, G, d]: fp32 values of bf16 scores [B, S, G], rounded where the reference rounds."""
    dots = (query.flatten(1, 2) @ keys.transpose(-1, -2)).unflatten(1, (query.shape[1], -1))
    return (torch.relu(dots) * weights.unsqueeze(-1)).float().sum(2).bfloat16().float()


@fused
def selected_scores(query, weights, keys):
    """The same for keys [B, S, k, d] of each query."""
    dots = query @ keys.transpose(-1, -2)
    return (torch.relu(dots) * weights.unsqueeze(-1)).float().sum(2).bfloat16().float()


@fused
def engram_update(streams, joined, q_weight, k_weight, live):
    """Adds the gated value to every stream; joined [T, (hc+1) D] holds the keys and the value. Also the gates [T,
    hc]."""
    hc, width = streams.shape[-2:]
    wide = streams.float()
    keys, value = joined.float().unflatten(-1, (hc + 1, width)).split([hc, 1], 1)
    product = q_weight.bfloat16().float() * k_weight.bfloat16().float()
    dot = (wide * product * keys).sum(-1) * torch.rsqrt(wide.square().mean(-1) + EPS)
    dot = dot * torch.rsqrt(keys.square().mean(-1) + EPS) * width**-0.5
    gate = torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot)) * live.unsqueeze(-1)
    return (wide + gate.unsqueeze(-1) * value).bfloat16(), gate


class Gather(torch.autograd.Function):
    """rows [B, G, d] at index [B, S, k]; the gradient is summed in fp32."""

    @staticmethod
    def forward(context, rows, index):
        batch, groups, width = rows.shape
        flat = index + torch.arange(batch, device=index.device)[:, None, None] * groups
        context.save_for_backward(flat)
        context.shape, context.dtype = rows.shape, rows.dtype
        return rows.reshape(-1, width)[flat]

    @staticmethod
    def backward(context, gradient):
        (flat,) = context.saved_tensors
        batch, groups, width = context.shape
        summed = torch.zeros(batch * groups, width, device=gradient.device)
        summed.index_add_(0, flat.flatten(), gradient.reshape(-1, width).float())
        return summed.view(context.shape).to(context.dtype), None


# ---- parameters --------------------------------------------------------------------------------------------


class LayerStack(nn.Module):
    """What every layer has, backbone or draft, with the layer as first axis. `quantised()` gives the weights of a
    pass."""

    def __init__(self, geometry, num_layers, num_experts):
        super().__init__()
        g, hidden, width = geometry, geometry.hidden_size, geometry.moe_intermediate_size
        heads, hc = g.num_attention_heads, g.hc_mult
        coefficients = (2 + hc) * hc

        def normal(*shape, gain=1.0):
            return nn.Parameter(torch.randn(num_layers, *shape) * (gain * shape[-1] ** -0.5))

        def ones(*shape):
            return nn.Parameter(torch.ones(num_layers, *shape))

        base = torch.cat([torch.full((hc,), -1.1), torch.zeros(hc), 3 * torch.eye(hc).flatten()])
        for site in ('attn', 'ffn'):
            self.register_parameter(f'hc_{site}_fn', normal(coefficients, hc * hidden))
            self.register_parameter(f'hc_{site}_base', nn.Parameter(base + 0.5 * torch.randn(num_layers, coefficients)))
            self.register_parameter(f'hc_{site}_scale', nn.Parameter(torch.full((num_layers, 3), 0.1)))
        self.attn_norm, self.ffn_norm = ones(hidden), ones(hidden)
        self.attn_sink = nn.Parameter(torch.zeros(num_layers, heads))
        self.wq_a, self.q_norm, self.wq_b = (
            normal(g.q_lora_rank, hidden),
            ones(g.q_lora_rank),
            normal(heads * g.head_dim, g.q_lora_rank),
        )
        self.wkv, self.kv_norm = normal(g.head_dim, hidden), ones(g.head_dim)
        self.wo_a = normal(g.o_groups * g.o_lora_rank, heads * g.head_dim // g.o_groups)
        self.wo_b = normal(hidden, g.o_groups * g.o_lora_rank, gain=0.5)
        self.gate = normal(num_experts, hidden)
        self.register_buffer('gate_bias', torch.zeros(num_layers, num_experts))
        self.register_buffer('gate_bias_vl', torch.zeros(num_layers, num_experts))
        self.experts_w1, self.experts_w3 = normal(num_experts, width, hidden), normal(num_experts, width, hidden)
        self.experts_w2 = normal(num_experts, hidden, width, gain=0.5)
        self.shared_w1, self.shared_w3, self.shared_w2 = (
            normal(width, hidden),
            normal(width, hidden),
            normal(hidden, width, gain=0.5),
        )

    def quantised(self):
        """{name: [layers, ...]} of bf16 values as the engine dequantises them; expert weights joined as experts()
        reads them."""
        weights = {name: fp8_weight(getattr(self, name)) for name in ('wq_a', 'wq_b', 'wkv', 'wo_a', 'wo_b')}

        def joined(name):
            return torch.cat(
                [
                    fp4_weight(getattr(self, f'experts_{name}')),
                    fp8_weight(getattr(self, f'shared_{name}')).unsqueeze(1),
                ],
                1,
            )

        weights['w13'] = torch.stack([joined('w1'), joined('w3')], 1)
        weights['w2'] = joined('w2').transpose(1, 2).flatten(2)
        return {name: value.unbind(0) for name, value in weights.items()}


class Sources(nn.Module):
    """Compressors and index keys of the KV sources, index queries of the index sources."""

    def __init__(self, geometry):
        super().__init__()
        g = geometry
        owners, indices = len(g.kv_source_layer_ids), len(g.index_source_layer_ids)
        self.compressor_wkv = nn.Parameter(torch.randn(owners, g.head_dim, g.hidden_size) * g.hidden_size**-0.5)
        self.compressor_wgate = nn.Parameter(
            torch.randn(len(g.gated_sources), g.head_dim, g.hidden_size) * (0.1 * g.hidden_size**-0.5)
        )
        self.compressor_norm = nn.Parameter(torch.ones(owners, g.head_dim))
        self.wk = nn.Parameter(torch.randn(owners, g.index_head_dim, g.head_dim) * g.head_dim**-0.5)
        self.k_norm = nn.Parameter(torch.ones(owners, g.index_head_dim))
        self.wq_b = nn.Parameter(
            torch.randn(indices, g.index_n_heads * g.index_head_dim, g.q_lora_rank) * g.q_lora_rank**-0.5
        )
        self.weights_proj = nn.Parameter(torch.randn(indices, g.index_n_heads, g.hidden_size) * g.hidden_size**-0.5)


class Engram(nn.Module):
    """Tables, projections and gate weights of the Engram layers."""

    def __init__(self, geometry, classes):
        super().__init__()
        g = geometry
        found, hc, hidden = tables(g), g.hc_mult, g.hidden_size
        self.hashers = nn.ModuleList(Hasher(g, classes, table) for table in found)
        self.embed = nn.ParameterList(torch.randn(rows, g.engram_head_dim) * 0.5 for _, _, rows in found)
        inputs = g.num_columns * g.engram_head_dim
        self.wkv = nn.Parameter(torch.randn(len(found), (hc + 1) * hidden, inputs) * inputs**-0.5)
        self.q_weight = nn.Parameter(torch.ones(len(found), hc, hidden))
        self.k_weight = nn.Parameter(torch.ones(len(found), hc, hidden))


class Probe:
    """Sees every value that passes; check_golden.py overrides the methods. Each `replace_*` returns what the run goes
    on with."""

    def note(self, name, layer, value):
        pass

    def replace_input(self, layer, streams, pre):
        return streams, pre

    def replace_engram(self, layer, streams):
        return streams


class Model(nn.Module):
    """The backbone. `exact` sums attention in fp32, runs all Sinkhorn rounds with gradient and breaks ties by index."""

    def __init__(self, geometry, classes, exact=False):
        super().__init__()
        self.geometry, self.exact = geometry, exact
        g = geometry
        self.embed = nn.Parameter(torch.randn(g.vocab_size, g.hidden_size))
        self.head = nn.Parameter(torch.randn(g.vocab_size, g.hidden_size) * (0.5 * g.hidden_size**-0.5))
        self.norm = nn.Parameter(torch.ones(g.hidden_size))
        self.layers = LayerStack(g, g.num_hidden_layers, g.n_routed_experts)
        self.sources = Sources(g)
        self.engram = Engram(g, classes)
        self.plain_frequencies = rope_frequencies(g.qk_rope_head_dim, g.rope_theta)
        self.yarn_frequencies = rope_frequencies(g.qk_rope_head_dim, g.compress_rope_theta, g.yarn)
        self.tables = {}

    def rope(self, kind, length, device, step=1):
        """cos, sin [length, pairs] at positions 0, step, 2 step, ..."""
        key = (kind, length, str(device), step)
        if key not in self.tables:
            frequencies = self.plain_frequencies if kind == 'plain' else self.yarn_frequencies
            self.tables[key] = rope_table([i * step for i in range(length)], frequencies).to(device)
        return self.tables[key]

    def forward(self, tokens, selection='sparse', image_mask=None, image_rows=None, probe=None):
        """tokens [B, S] to a dict: streams' final `hidden` [B, S, D] (normalised), `taps` [B, S, targets D],
        `index_loss`, expert `loads`. selection: 'dense' attends to every visible group, 'sparse' to the index's
        choice; both distil it."""
        run = Run(self, tokens, selection, image_mask, probe or Probe())
        embedded = nn.functional.embedding(tokens, self.embed).bfloat16()  # the gradient is summed in fp32
        if image_rows is not None:
            embedded[image_mask] = image_rows.to(embedded)
        return run.all_layers(embedded)

    def logits(self, hidden):
        return nn.functional.linear(hidden.float(), self.head.bfloat16().float())


class Run:
    """One pass over [B, S] tokens: the values that layers hand to each other."""

    def __init__(self, model, tokens, selection, image_mask, probe):
        self.model, self.g, self.probe = model, model.geometry, probe
        self.tokens, self.selection, self.image_mask = tokens, selection, image_mask
        self.batch, self.length = tokens.shape
        self.weights = model.layers.quantised()
        self.index_wq_b = fp8_weight(model.sources.wq_b).unbind(0)
        self.engram_wkv = fp8_weight(model.engram.wkv).unbind(0)
        self.compressed, self.keys = {}, {}  # KV source number -> rows as cached, index keys
        self.selected = None  # what the latest index source handed on
        self.kept = None  # [B, S, G] groups inside the candidates
        self.index_loss, self.loads = [], []
        self.sites = (self.g.hc_sinkhorn_iters, self.g.hc_eps, model.exact)

    def all_layers(self, embedded):
        g, probe = self.g, self.probe
        streams = embedded.flatten(0, 1).unsqueeze(1).expand(-1, g.hc_mult, -1).contiguous()
        pre = torch.zeros(streams.shape[:2], device=streams.device)
        pre[:, 0] = 1
        taps = []
        for layer in range(g.num_hidden_layers):
            streams, pre = probe.replace_input(layer, streams, pre)
            if layer in g.engram_layer_ids:
                streams = probe.replace_engram(layer, self.engram_layer(layer, streams))
            if layer in g.dspark_target_layer_ids:
                taps.append(streams.float().mean(1).bfloat16())
            streams, pre = self.attention_site(layer, streams, pre)
            probe.note('mid', layer, streams)
            streams, pre = self.ffn_site(layer, streams, pre)
            probe.note('resid', layer, streams)
        hidden = rms_norm(collapse(streams, pre), self.model.norm)
        shape = (self.batch, self.length, -1)
        return {
            'hidden': hidden.view(shape),
            'taps': torch.cat(taps, -1).view(shape) if taps else None,
            'index_loss': sum(self.index_loss) if self.index_loss else torch.zeros((), device=hidden.device),
            'loads': torch.stack(self.loads),
        }

    def engram_layer(self, layer, streams):
        number, engram = self.g.engram_layer_ids.index(layer), self.model.engram
        rows = engram.hashers[number](self.tokens, self.image_mask)
        looked_up = fp8_rows(nn.functional.embedding(rows.flatten(0, 1), engram.embed[number])).flatten(-2)
        joined = nn.functional.linear(quantise_activation(looked_up), self.engram_wkv[number])
        live = (
            torch.ones(streams.shape[0], device=streams.device)
            if self.image_mask is None
            else (~self.image_mask).flatten().float()
        )
        streams, gate = engram_update(streams, joined, engram.q_weight[number], engram.k_weight[number], live)
        for name, value in (('engram_rows', rows.flatten(0, 1)), ('engram_gate', gate), ('engram_out', streams)):
            self.probe.note(name, layer, value)
        return streams

    def mix(self, layer, site, streams):
        stack = self.model.layers
        fn, base, scale = (getattr(stack, f'hc_{site}_{part}')[layer] for part in ('fn', 'base', 'scale'))
        found = mix(streams, fn, base, scale, *self.sites)
        self.probe.note(f'mix_{site}', layer, found)
        return found

    def attention_site(self, layer, streams, pre):
        next_pre, post, comb = self.mix(layer, 'attn', streams)
        normed, quantised = collapse_norm(streams, pre, self.model.layers.attn_norm[layer])
        update = self.attention(layer, normed, quantised)
        return expand(streams, update, post, comb), next_pre

    def ffn_site(self, layer, streams, pre):
        next_pre, post, comb = self.mix(layer, 'ffn', streams)
        stack, g = self.model.layers, self.g
        normed, quantised = collapse_norm(streams, pre, stack.ffn_norm[layer])
        bias = stack.gate_bias[layer]
        if self.image_mask is not None:
            bias = torch.where(self.image_mask.flatten()[:, None], stack.gate_bias_vl[layer], bias)
        update, picked, weights = experts(
            normed,
            quantised,
            stack.gate[layer],
            bias,
            self.weights['w13'][layer],
            self.weights['w2'][layer],
            g.num_experts_per_tok,
            g.routed_scaling_factor,
            g.swiglu_limit,
            self.model.exact,
        )
        self.probe.note('router', layer, (picked, weights))
        self.loads.append(picked.detach().mean(0))
        return expand(streams, update, post, comb), next_pre

    def attention(self, layer, normed, quantised):
        g, stack, role = self.g, self.model.layers, self.g.roles[layer]
        table = self.model.rope('plain' if role.ratio == 0 else 'yarn', self.length, normed.device)
        cos, sin = (part.repeat(self.batch, 1) for part in table)
        latent, query = queries(
            quantised,
            self.weights['wq_a'][layer],
            stack.q_norm[layer],
            self.weights['wq_b'][layer],
            cos,
            sin,
            g.num_attention_heads,
        )
        row = window_row(quantised, self.weights['wkv'][layer], stack.kv_norm[layer], cos, sin)
        self.probe.note('window_kv', layer, row)
        if role.is_kv_source:
            self.write_source(role, normed)
        if role.is_index_source:
            self.select(layer, role, latent.detach(), normed.detach(), cos, sin)
        attended = self.attend(layer, role, self.sequences(query), self.sequences(row))
        return project_out(
            attended.flatten(0, 1), cos, sin, self.weights['wo_a'][layer], self.weights['wo_b'][layer], g.o_groups
        )

    def sequences(self, rows):
        return rows.unflatten(0, (self.batch, self.length))

    def attend(self, layer, role, query, row):
        g, exact = self.g, self.model.exact
        short = -self.length % g.sliding_window
        query, row = nn.functional.pad(query, (0, 0, 0, 0, 0, short)), nn.functional.pad(row, (0, 0, 0, short))
        sink = self.model.layers.attn_sink[layer]
        if role.ratio == 0 or self.compressed[role.owner].shape[1] == 0:
            return attend_window(query, row, sink, g.sliding_window, exact)[:, : self.length]
        if self.selection == 'dense':
            seen = nn.functional.pad(self.visible(role), (0, 0, 0, short)).expand(self.batch, -1, -1)
            attended, mass = attend_all(query, row, self.compressed[role.owner], seen, sink, g.sliding_window, exact)
        else:
            rows, absent, _ = self.selected
            rows, absent = (
                nn.functional.pad(rows, (0, 0, 0, 0, 0, short)),
                nn.functional.pad(absent, (0, 0, 0, short), value=True),
            )
            attended, mass = attend_selected(query, row, rows, absent, sink, g.sliding_window, exact)
        self.distil(mass[:, : self.length])
        return attended[:, : self.length]

    def visible(self, role):
        """[1, S, G]: groups that are complete at a position."""
        groups = self.compressed[role.owner].shape[1]
        device = self.tokens.device
        closed = (torch.arange(self.length, device=device) + 1) // role.ratio
        return (torch.arange(groups, device=device)[None] < closed[:, None]).unsqueeze(0)

    def write_source(self, role, normed):
        g, sources, owner = self.g, self.model.sources, role.owner
        groups = self.length // role.ratio
        cos, sin = self.model.rope('yarn', groups, normed.device, role.ratio)
        gate = sources.compressor_wgate[g.gated_sources.index(owner)] if role.ratio == 2 else None
        latent, self.compressed[owner] = compress(
            self.sequences(normed),
            sources.compressor_wkv[owner],
            gate,
            sources.compressor_norm[owner],
            cos,
            sin,
            role.ratio,
        )
        self.keys[owner] = index_keys(latent.detach(), sources.wk[owner], sources.k_norm[owner], cos, sin)
        layer = g.kv_source_layer_ids[owner]
        self.probe.note('compressed_kv', layer, self.compressed[owner])
        self.probe.note('index_k', layer, self.keys[owner])

    def select(self, layer, role, latent, normed, cos, sin):
        """Scores the groups and hands on the choice: in 'dense' the scores themselves, to be distilled."""
        g, sources = self.g, self.model.sources
        keys = self.keys[role.owner]
        if keys.shape[1] == 0:
            return
        query, weights = index_queries(
            latent, normed, self.index_wq_b[role.index], sources.weights_proj[role.index], cos, sin, g.index_n_heads
        )
        query, weights = self.sequences(query), self.sequences(weights)
        if self.selection == 'dense':
            scores = index_scores(query, weights, keys).masked_fill(~self.visible(role), float('-inf'))
            self.selected = (None, None, scores)
            return
        with torch.no_grad():
            chosen, absent = self.choose(layer, role, query, weights, keys)
        scores = selected_scores(query, weights, Gather.apply(keys, chosen)).masked_fill(absent, float('-inf'))
        self.selected = (Gather.apply(self.compressed[role.owner], chosen), absent, scores)

    def choose(self, layer, role, query, weights, keys):
        """Indices [B, S, k] of the best groups, and where there is none; one sequence at a time, for the memory."""
        seen, k = self.visible(role)[0], min(self.g.index_topk, keys.shape[1])
        chosen, absent, kept = [], [], []
        for number in range(self.batch):
            one = slice(number, number + 1)
            scores = index_scores(query[one], weights[one], keys[one])[0].masked_fill(~seen, float('-inf'))
            if layer == self.g.candidate_source_layer_id:
                kept.append(self.candidates(scores, role.ratio))
            elif self.kept is not None and layer > self.g.candidate_source_layer_id:
                scores = scores.masked_fill(~self.kept[number], float('-inf'))
            self.probe.note('index_scores', layer, scores)
            best, index = self.best(scores, k)
            chosen.append(torch.where(best == float('-inf'), 0, index))
            absent.append(best == float('-inf'))
            self.probe.note('topk', layer, torch.where(absent[-1], -1, index))
        if kept:
            self.kept = torch.stack(kept)
        return torch.stack(chosen), torch.stack(absent)

    def best(self, scores, k):
        if not self.model.exact:
            return torch.topk(scores, k, -1, sorted=False)
        ranked = torch.sort(scores, dim=-1, descending=True, stable=True)
        return ranked.values[:, :k], ranked.indices[:, :k]

    def candidates(self, scores, ratio):
        """[S, G]: groups of the best candidate pages; the newest visible page is always among them."""
        g, (length, groups) = self.g, scores.shape
        size = g.candidate_block_size
        pages = nn.functional.pad(scores, (0, -groups % size), value=float('-inf')).unflatten(-1, (-1, size)).amax(-1)
        closed = (torch.arange(length, device=scores.device) + 1) // ratio
        newest = (closed - 1).clamp(min=0) // size
        pages.scatter_(1, newest[:, None], torch.where(closed > 0, float('inf'), float('-inf'))[:, None])
        best, index = self.best(pages, min(g.candidate_topk_blocks, pages.shape[1]))
        kept = torch.zeros_like(pages, dtype=torch.bool).scatter(1, index, best > float('-inf'))
        self.probe.note('candidate_blocks', g.candidate_source_layer_id, kept)
        return kept.repeat_interleave(size, -1)[:, :groups]

    def distil(self, mass):
        """Cross-entropy of the index scores against the attention mass on the groups (its entropy is subtracted)."""
        if not torch.is_grad_enabled():
            return
        self.index_loss.append(index_divergence(self.selected[2], mass))


@fused
def index_divergence(scores, mass):
    """Mean over positions of KL(mass || softmax(scores)) weighted with the mass itself; -inf scores are absent."""
    predicted = torch.log_softmax(scores.clamp(min=-1e4), -1)
    total = mass.sum(-1, keepdim=True)
    target = mass / (total + 1e-9)
    return (mass * (torch.log(target + 1e-9) - predicted)).sum(-1).mean()
