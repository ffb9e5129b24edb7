"""The released checkpoint format: tensors of the parameters under the released names and types, and back. Used by
export.py, check_golden.py and train.py. Reads and writes safetensors shards, model.safetensors.index.json and
token_classes."""

import json
import pathlib
import struct

import torch

from numerics import GROUP, fp4_parts, fp8_parts, fp8_row_parts, spread

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
DTYPES = {
    'BF16': torch.bfloat16,
    'F32': torch.float32,
    'I32': torch.int32,
    'F8_E4M3': torch.float8_e4m3fn,
    'F8_E8M0': torch.uint8,
    'I8': torch.uint8,
    'U8': torch.uint8,
}
SHARD_BYTES = 15 * 2**20


def read_safetensors(path):
    """{name: tensor}; scales and packed codes stay bytes."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack('<Q', raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop('__metadata__', None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry['data_offsets'])
        flat = torch.frombuffer(bytearray(raw[begin:end]) or bytearray(1), dtype=torch.uint8)[: end - begin]
        found[name] = flat.view(DTYPES[entry['dtype']]).view(entry['shape'])
    return found


def write_safetensors(path, tensors):
    """tensors: {name: (dtype tag, tensor)}; compact header padded to 8 bytes."""
    header, offset = {'__metadata__': {'format': 'pt'}}, 0
    for name, (tag, tensor) in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {'dtype': tag, 'shape': list(tensor.shape), 'data_offsets': [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for _, tensor in tensors.values():
            file.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def load_classes(folder):
    return read_safetensors(pathlib.Path(folder) / 'token_classes.safetensors')['token_classes'].numpy()


# ---- names -------------------------------------------------------------------------------------------------


def places(model, draft):
    """Yields (released name, kind, parameter, index): the tensor is parameter[index]. Order = order in the files."""
    g = model.geometry
    yield 'embed.weight', 'bf16', model.embed, ()
    yield 'head.weight', 'bf16', model.head, ()
    yield 'norm.weight', 'bf16', model.norm, ()
    for layer in range(g.num_hidden_layers):
        yield from layer_places(model.layers, f'layers.{layer}', layer)
        yield from source_places(model, layer)
        if layer in g.engram_layer_ids:
            number = g.engram_layer_ids.index(layer)
            yield f'layers.{layer}.engram.wkv', 'fp8', model.engram.wkv, (number,)
            yield f'layers.{layer}.engram.q_weight', 'bf16', model.engram.q_weight, (number,)
            yield f'layers.{layer}.engram.k_weight', 'bf16', model.engram.k_weight, (number,)
    if draft is not None:
        yield from draft_places(draft)
    for number, layer in enumerate(g.engram_layer_ids):
        yield f'layers.{layer}.engram.embed', 'fp8row', model.engram.embed[number], ()


def layer_places(stack, prefix, layer):
    for site in ('attn', 'ffn'):
        for part in ('fn', 'base', 'scale'):
            yield f'{prefix}.hc_{site}_{part}', 'f32', getattr(stack, f'hc_{site}_{part}'), (layer,)
    for name in ('attn_norm', 'ffn_norm'):
        yield f'{prefix}.{name}.weight', 'bf16', getattr(stack, name), (layer,)
    yield f'{prefix}.attn.attn_sink', 'f32', stack.attn_sink, (layer,)
    for name in ('wq_a', 'wq_b', 'wkv', 'wo_a', 'wo_b'):
        yield f'{prefix}.attn.{name}', 'fp8', getattr(stack, name), (layer,)
    for name in ('q_norm', 'kv_norm'):
        yield f'{prefix}.attn.{name}.weight', 'bf16', getattr(stack, name), (layer,)
    yield f'{prefix}.ffn.gate.weight', 'bf16', stack.gate, (layer,)
    yield f'{prefix}.ffn.gate.bias', 'f32', stack.gate_bias, (layer,)
    yield f'{prefix}.ffn.gate.bias_vl', 'f32', stack.gate_bias_vl, (layer,)
    for expert in range(stack.gate.shape[1]):
        for name in ('w1', 'w2', 'w3'):
            yield f'{prefix}.ffn.experts.{expert}.{name}', 'fp4', getattr(stack, f'experts_{name}'), (layer, expert)
    for name in ('w1', 'w2', 'w3'):
        yield f'{prefix}.ffn.shared_experts.{name}', 'fp8', getattr(stack, f'shared_{name}'), (layer,)


def source_places(model, layer):
    g, sources, prefix = model.geometry, model.sources, f'layers.{layer}.attn'
    role = g.roles[layer]
    if role.is_kv_source:
        yield f'{prefix}.compressor.wkv.weight', 'bf16', sources.compressor_wkv, (role.owner,)
        if role.ratio == 2:
            yield (
                f'{prefix}.compressor.wgate.weight',
                'bf16',
                sources.compressor_wgate,
                (g.gated_sources.index(role.owner),),
            )
        yield f'{prefix}.compressor.norm.weight', 'bf16', sources.compressor_norm, (role.owner,)
        yield f'{prefix}.indexer.wk.weight', 'bf16', sources.wk, (role.owner,)
        yield f'{prefix}.indexer.k_norm.weight', 'bf16', sources.k_norm, (role.owner,)
    if role.is_index_source:
        yield f'{prefix}.indexer.wq_b', 'fp8', sources.wq_b, (role.index,)
        yield f'{prefix}.indexer.weights_proj.weight', 'bf16', sources.weights_proj, (role.index,)


def draft_places(draft):
    last = draft.geometry.num_nextn_predict_layers - 1
    for layer in range(last + 1):
        yield from layer_places(draft.layers, f'mtp.{layer}', layer)
        if layer == 0:
            yield 'mtp.0.main_proj', 'fp8', draft.main_proj, ()
            yield 'mtp.0.main_norm.weight', 'bf16', draft.main_norm, ()
        if layer == last:
            yield f'mtp.{last}.norm.weight', 'bf16', draft.norm, ()
            yield f'mtp.{last}.markov_head.embed.weight', 'bf16', draft.markov_embed, ()
            yield f'mtp.{last}.markov_head.head.weight', 'bf16', draft.markov_head, ()
            yield f'mtp.{last}.confidence_head.proj.weight', 'bf16', draft.confidence, ()


# ---- values ------------------------------------------------------------------------------------------------


def scale_bytes(scale):
    return (scale.contiguous().view(torch.int32) >> 23).to(torch.uint8)


def pack_fp4(codes):
    """e2m1 values [N, K] to bytes [N, K/2], even k in the low nibble."""
    number = (codes.abs().unsqueeze(-1) == E2M1).to(torch.uint8).argmax(-1).to(torch.uint8)
    number = number | (torch.signbit(codes).to(torch.uint8) << 3)
    return number[:, 0::2] | (number[:, 1::2] << 4)


def unpack_fp4(packed):
    number = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return E2M1[number & 7] * torch.where(number >= 8, -1.0, 1.0)


def encoded(name, kind, value):
    """Yields (name, dtype tag, tensor) of the file for a parameter's tensor."""
    value = value.detach().float().cpu()
    if kind == 'bf16':
        yield name, 'BF16', value.bfloat16()
    elif kind == 'f32':
        yield name, 'F32', value
    elif kind == 'fp4':
        codes, scale = fp4_parts(value)
        yield f'{name}.weight', 'I8', pack_fp4(codes)
        yield f'{name}.scale', 'F8_E8M0', scale_bytes(scale)
    else:
        codes, scale = (fp8_parts if kind == 'fp8' else fp8_row_parts)(value)
        yield f'{name}.weight', 'F8_E4M3', codes.to(torch.float8_e4m3fn)
        yield f'{name}.scale', 'F8_E8M0', scale_bytes(scale)


def decoded(name, kind, tensors):
    """The fp32 value of a parameter's tensor from the tensors of a checkpoint."""
    if kind in ('bf16', 'f32'):
        return tensors[name].float()
    scale = torch.pow(2.0, tensors[f'{name}.scale'].double() - 127).float()
    codes = tensors[f'{name}.weight']
    if kind == 'fp4':
        return unpack_fp4(codes) * spread(scale)
    rows = GROUP if kind == 'fp8' else 1
    return codes.float() * spread(scale, rows)[: codes.shape[0]]


def load_checkpoint(folder, model, draft):
    """Fills the parameters from a released-format checkpoint."""
    folder = pathlib.Path(folder)
    index = json.loads((folder / 'model.safetensors.index.json').read_text(encoding='utf-8'))
    tensors = {}
    for shard in sorted(set(index['weight_map'].values())):
        tensors.update(read_safetensors(folder / shard))
    with torch.no_grad():
        for name, kind, parameter, where in places(model, draft):
            parameter[where].copy_(decoded(name, kind, tensors))


def save_checkpoint(folder, model, draft):
    """Writes shards of at most SHARD_BYTES and the index."""
    folder = pathlib.Path(folder)
    shards, used = [{}], 0
    for name, kind, parameter, where in places(model, draft):
        parts = list(encoded(name, kind, parameter[where]))
        size = sum(tensor.numel() * tensor.element_size() for _, _, tensor in parts)
        if used + size > SHARD_BYTES:
            shards.append({})
            used = 0
        used += size
        shards[-1].update({part: (tag, tensor) for part, tag, tensor in parts})
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f'model-{number:05}-of-{len(shards):05}.safetensors'
        write_safetensors(folder / file, shard)
        weight_map.update({name: file for name in shard})
        total += sum(tensor.numel() * tensor.element_size() for _, tensor in shard.values())
    text = json.dumps({'metadata': {'total_size': total}, 'weight_map': dict(sorted(weight_map.items()))}, indent=1)
    (folder / 'model.safetensors.index.json').write_text(text + '\n', encoding='utf-8')
    return total
