"""DSpark: the draft layers, Markov head and confidence head, differentiable, for many anchors of a sequence at once.
Shares embedding and head with the backbone, whose gradients it never asks for. Used by train.py and check_golden.py."""

import torch
from torch import nn

from model import (
    Gather,
    LayerStack,
    collapse,
    collapse_norm,
    expand,
    experts,
    fused,
    mix,
    project_out,
    queries,
    softmax_parts,
    weighted,
    window_row,
)
from numerics import fp8_weight, quantise_activation, rms_norm, rope_table


@fused
def context_input(taps, main_proj, main_norm):
    """The common input of all draft layers' context rows, as their FP8 linears read it."""
    return quantise_activation(rms_norm(nn.functional.linear(quantise_activation(taps), main_proj), main_norm))


@fused
def attend_draft(query, context, own, absent, sink, exact):
    """Rows [N, R, heads, d] of a draft against their anchor's context [N, W, d] and all rows of the draft [N, R, d]."""
    scale = query.shape[-1] ** -0.5
    flat = query.float().flatten(1, 2)
    far = ((flat @ context.float().transpose(-1, -2)) * scale).masked_fill(absent.unsqueeze(1), float('-inf'))
    near = (flat @ own.float().transpose(-1, -2)) * scale
    sinks = sink.repeat(query.shape[1])
    (far, near), total = softmax_parts(far, [near], sinks)
    summed = weighted(far, context, exact) + weighted(near, own, exact)
    return (summed / total).bfloat16().unflatten(1, query.shape[1:3])


class Draft(nn.Module):
    def __init__(self, geometry, exact=False):
        super().__init__()
        g = geometry
        self.geometry, self.exact = g, exact
        hidden, rank = g.hidden_size, g.dspark_markov_rank
        inputs = len(g.dspark_target_layer_ids) * hidden
        self.layers = LayerStack(g, g.num_nextn_predict_layers, g.dspark_n_routed_experts)
        self.main_proj = nn.Parameter(torch.randn(hidden, inputs) * inputs**-0.5)
        self.main_norm = nn.Parameter(torch.ones(hidden))
        self.norm = nn.Parameter(torch.ones(hidden))
        self.markov_embed = nn.Parameter(torch.randn(g.vocab_size, rank) * 0.5)
        self.markov_head = nn.Parameter(torch.randn(g.vocab_size, rank) * (0.1 * rank**-0.5))
        self.confidence = nn.Parameter(torch.zeros(1, hidden + rank))

    def forward(self, model, taps, tokens, anchors):
        """taps [B, S, targets D] of committed positions; anchors [B, K] last committed positions; tokens [B, K] what
        follows each. Returns the collapsed rows [B, K, R, D] before the norm, and the base logits [B, K, R, V]."""
        g = self.geometry
        rows, device = g.dspark_block_size, taps.device
        batch, count = anchors.shape
        weights = self.layers.quantised()
        table = self.positions(model, taps.shape[1] + rows + 1, device)
        own_positions = (anchors.unsqueeze(-1) + 1 + torch.arange(rows, device=device)).flatten()
        own_table = (table[0][own_positions], table[1][own_positions])
        context_table = tuple(part[: taps.shape[1]].repeat(batch, 1) for part in table)
        source = context_input(taps.flatten(0, 1), fp8_weight(self.main_proj), self.main_norm)
        window = anchors.unsqueeze(-1) - g.sliding_window + 1 + torch.arange(g.sliding_window, device=device)
        absent = (window < 0).flatten(0, 1)
        places = (window.clamp(min=0) + torch.arange(batch, device=device)[:, None, None] * taps.shape[1]).flatten(0, 1)
        ids = torch.full((batch, count, rows), g.dspark_noise_token_id, device=device)
        ids[..., 0] = tokens
        streams = model.embed.detach().bfloat16()[ids].flatten(0, 2).unsqueeze(1).expand(-1, g.hc_mult, -1).contiguous()
        pre = torch.zeros(streams.shape[:2], device=device)
        pre[:, 0] = 1
        for layer in range(g.num_nextn_predict_layers):
            context = window_row(source, weights['wkv'][layer], self.layers.kv_norm[layer], *context_table)
            context = Gather.apply(context.unsqueeze(0), places.unsqueeze(0))[0]
            streams, pre = self.layer(layer, weights, streams, pre, own_table, context, absent)
        collapsed = collapse(streams, pre)
        base = nn.functional.linear(rms_norm(collapsed, self.norm).float(), model.head.detach().bfloat16().float())
        shape = (batch, count, rows, -1)
        return collapsed.view(shape), base.view(shape)

    def positions(self, model, length, device):
        key = ('draft', length, str(device))
        if key not in model.tables:
            model.tables[key] = rope_table(range(length), model.plain_frequencies).to(device)
        return model.tables[key]

    def layer(self, layer, weights, streams, pre, table, context, absent):
        g, stack = self.geometry, self.layers
        sites = (g.hc_sinkhorn_iters, g.hc_eps, self.exact)
        attn = mix(streams, stack.hc_attn_fn[layer], stack.hc_attn_base[layer], stack.hc_attn_scale[layer], *sites)
        _, quantised = collapse_norm(streams, pre, stack.attn_norm[layer])
        _, query = queries(
            quantised,
            weights['wq_a'][layer],
            stack.q_norm[layer],
            weights['wq_b'][layer],
            *table,
            g.num_attention_heads,
        )
        row = window_row(quantised, weights['wkv'][layer], stack.kv_norm[layer], *table)
        grouped = (part.unflatten(0, (-1, g.dspark_block_size)) for part in (query, row))
        query, row = grouped
        attended = attend_draft(query, context, row, absent, stack.attn_sink[layer], self.exact).flatten(0, 1)
        update = project_out(attended, *table, weights['wo_a'][layer], weights['wo_b'][layer], g.o_groups)
        streams, pre = expand(streams, update, attn[1], attn[2]), attn[0]
        ffn = mix(streams, stack.hc_ffn_fn[layer], stack.hc_ffn_base[layer], stack.hc_ffn_scale[layer], *sites)
        normed, quantised = collapse_norm(streams, pre, stack.ffn_norm[layer])
        update, self.picked, _ = experts(
            normed,
            quantised,
            stack.gate[layer],
            stack.gate_bias[layer],
            weights['w13'][layer],
            weights['w2'][layer],
            g.dspark_num_experts_per_tok,
            g.routed_scaling_factor,
            g.swiglu_limit,
            self.exact,
        )
        return expand(streams, update, ffn[1], ffn[2]), ffn[0]

    def markov(self, previous):
        """Logit bias and embedding of the previous token of each row."""
        embedded = nn.functional.embedding(previous, self.markov_embed).bfloat16()
        return nn.functional.linear(embedded.float(), self.markov_head.bfloat16().float()), embedded

    def confidence_logit(self, collapsed, embedded):
        joined = torch.cat([collapsed, embedded], -1).float()
        return nn.functional.linear(joined, self.confidence.bfloat16().float()).squeeze(-1)
