#!/usr/bin/env python3
"""Holds this folder's model against the recorded runs of the released program in tests/golden/micro: layers on
recorded inputs, FFN sites, free runs, decoding (as one long run) and drafts. Prints the worst error of each mode as a
share of its bound; exit code 1 where a bound is exceeded, or where wrong weights pass.
usage: check_golden.py --checkpoint FOLDER [--wrong FOLDER] (monostep make-model --geometry micro --seed 3, and 4)"""

import argparse
import lzma
import pathlib
import re
import subprocess
import sys
import tempfile

import torch

from checkpoint import load_checkpoint, load_classes, places, read_safetensors, write_safetensors
from draft import Draft
from geometry import load_geometry
from model import Model, Probe, Run
from numerics import fp4_weight, fp8_rows, fp8_weight

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / 'tests/golden'
CASES = ('case_001', 'case_002', 'case_003', 'case_017', 'case_040', 'case_096', 'mask_040')
TAGS = {torch.float32: 'F32', torch.bfloat16: 'BF16', torch.int32: 'I32', torch.uint8: 'U8'}


class Recorder(Probe):
    """Collects a run under the names of the records; with `inputs`, feeds every layer its recorded input."""

    def __init__(self, geometry, length, inputs=None):
        self.g, self.length, self.inputs, self.values = geometry, length, inputs, {}

    def note(self, name, layer, value):
        self.values[name, layer] = value

    def replace_input(self, layer, streams, pre):
        if self.inputs is None or layer == 0:
            return streams, pre
        return self.inputs['resid'][:, layer - 1], self.inputs['pre'][:, layer - 1, 1]

    def replace_engram(self, layer, streams):
        return streams if self.inputs is None else self.inputs['engram_out'][:, self.g.engram_layer_ids.index(layer)]

    def stacked(self, name, layers):
        return torch.stack([self.values[name, layer] for layer in layers], 1)

    def record(self, model, result):
        g = self.g
        layers, tables = range(g.num_hidden_layers), g.engram_layer_ids
        out = {name: self.stacked(name, layers) for name in ('resid', 'mid', 'window_kv')}
        for number, name in enumerate(('pre', 'post', 'comb')):
            out[name] = torch.stack(
                [
                    torch.stack([self.values[f'mix_{site}', layer][number] for site in ('attn', 'ffn')], 1)
                    for layer in layers
                ],
                1,
            )
        for name in ('engram_rows', 'engram_gate', 'engram_out'):
            out[name] = self.stacked(name, tables)
        out['engram_rows'] = out['engram_rows'].int()
        picked = torch.stack([self.values['router', layer][0] for layer in layers], 1)
        weights = torch.stack([self.values['router', layer][1] for layer in layers], 1)
        ids = picked.topk(g.num_experts_per_tok, -1).indices.sort(-1).values
        out['router_ids'], out['router_weights'] = ids.int(), weights.gather(-1, ids)
        for (name, layer), value in self.values.items():
            if name in ('compressed_kv', 'index_k'):
                out[f'{name}.{layer}'] = value[0]
            elif name == 'index_scores':
                out[f'{name}.{layer}'] = value.bfloat16()
            elif name == 'topk':
                out[f'{name}.{layer}'] = ascending(value)
            elif name == 'candidate_blocks':
                out[f'{name}.{layer}'] = value.to(torch.uint8)
        out['taps'], out['logits'] = result['taps'][0], model.logits(result['hidden'])[0]
        out['positions'] = torch.arange(self.length, dtype=torch.int32)
        return out


def ascending(selection):
    """Ascending positions with the missing ones (-1) behind."""
    last = 1 << 30
    ordered = torch.where(selection < 0, last, selection).sort(-1).values
    return torch.where(ordered == last, -1, ordered).int()


def run_whole(model, case, tokens, inputs=None):
    recorder = Recorder(model.geometry, len(tokens), inputs)
    mask = case['image_mask'].bool() if 'image_mask' in case else None
    if mask is not None:
        mask = torch.cat([mask, torch.zeros(len(tokens) - len(mask), dtype=torch.bool)]).unsqueeze(0)
    result = model(tokens.long().unsqueeze(0), image_mask=mask, image_rows=case.get('image_rows'), probe=recorder)
    return recorder.record(model, result)


def run_ffn(model, case):
    """Every FFN site alone, from recorded streams and coefficients."""
    tokens = case['tokens'].long().unsqueeze(0)
    recorder = Recorder(model.geometry, tokens.shape[1])
    mask = case['image_mask'].bool().unsqueeze(0) if 'image_mask' in case else None
    run = Run(model, tokens, 'sparse', mask, recorder)
    layers = range(model.geometry.num_hidden_layers)
    resid = [run.ffn_site(layer, case['mid'][:, layer], case['pre'][:, layer, 0])[0] for layer in layers]
    picked = torch.stack([recorder.values['router', layer][0] for layer in layers], 1)
    return {
        'positions': torch.arange(tokens.shape[1], dtype=torch.int32),
        'resid': torch.stack(resid, 1),
        'router_ids': picked.topk(model.geometry.num_experts_per_tok, -1).indices.sort(-1).values.int(),
    }


def run_draft(model, draft, case, taps):
    """A greedy draft after each recorded token; taps [S + steps - 1, ...] of all committed positions."""
    first = len(case['tokens']) - 1
    start = int(case['dec.draft_first'][0]) if 'dec.draft_first' in case else 0
    steps = range(start, len(case['dec.tokens']))
    anchors = torch.tensor([[first + step for step in steps]])
    previous = case['dec.tokens'][start:].long().unsqueeze(0)
    collapsed, base = draft(model, taps.unsqueeze(0), previous, anchors)
    ids, logits, confidence = [previous], [], []
    for row in range(model.geometry.dspark_block_size):
        bias, embedded = draft.markov(ids[-1])
        confidence.append(draft.confidence_logit(collapsed[:, :, row], embedded))
        logits.append(base[:, :, row] + bias)
        ids.append(logits[-1].argmax(-1))
    return {
        'dec.draft_ids': torch.stack(ids, -1)[0].int(),
        'dec.draft_logits': torch.stack(logits, 2)[0],
        'dec.confidence': torch.stack(confidence, -1)[0],
    }


def run_decode(model, draft, case):
    """The recorded continuation as one long run: with the owner rule it equals steps."""
    tokens = torch.cat([case['tokens'], case['dec.tokens'][:-1]])
    whole = run_whole(model, case, tokens)
    first = len(case['tokens']) - 1
    out = {'dec.logits': whole['logits'][first:], 'dec.taps': whole['taps'][first:]}
    selections = []
    for layer in model.geometry.index_source_layer_ids:
        chosen = whole[f'topk.{layer}'][first:]
        selections.append(torch.nn.functional.pad(chosen, (0, model.geometry.index_topk - chosen.shape[1]), value=-1))
    out['dec.topk'] = torch.stack(selections, 1)
    return out | run_draft(model, draft, case, whole['taps'])


def compute(mode, model, draft, case):
    if mode == 'layer':
        return run_whole(model, case, case['tokens'], case)
    if mode == 'free':
        return run_whole(model, case, case['tokens'])
    if mode == 'ffn':
        return run_ffn(model, case)
    if mode == 'draft':
        return run_draft(model, draft, case, torch.cat([case['taps'][:-1], case['dec.taps']]))
    return run_decode(model, draft, case)


def compare(mode, model, draft, cases, folder):
    """Text of tests/golden/compare.py for these cases."""
    pairs = []
    for name in cases:
        record = folder / f'{name}.record'
        record.write_bytes(lzma.decompress((GOLDEN / f'micro/{name}.safetensors.xz').read_bytes()))
        case = read_safetensors(record)
        out = folder / f'{name}.{mode}'
        with torch.no_grad():
            values = compute(mode, model, draft, case)
        write_safetensors(out, {key: (TAGS[value.dtype], value) for key, value in values.items()})
        pairs += [out, record]
    command = [sys.executable, GOLDEN / 'compare.py', '--mode', mode, '--bounds', GOLDEN / 'micro/bounds.json', *pairs]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def requantised(model, draft):
    """Names of weights that quantising again would change: the model computes with quantised weights, so there must
    be none."""
    quantisers = {'fp8': fp8_weight, 'fp4': fp4_weight, 'fp8row': fp8_rows}
    return [
        name
        for name, kind, parameter, where in places(model, draft)
        if kind in quantisers and not torch.equal(quantisers[kind](parameter[where]).float(), parameter[where])
    ]


def load(folder):
    geometry = load_geometry(folder)
    model, draft = Model(geometry, load_classes(folder), exact=True), Draft(geometry, exact=True)
    load_checkpoint(folder, model, draft)
    return model, draft


def check(folder, must_fail, scratch):
    model, draft = load(folder)
    changed = requantised(model, draft)
    good = not changed
    print(f'{folder}: weights that quantising again changes: {changed or "none"}')
    for mode in ('layer', 'ffn', 'free', 'decode', 'draft'):
        cases = [name for name in CASES[3:] if not (name == 'mask_040' and mode in ('decode', 'draft'))]
        if mode == 'decode' or mode == 'draft':
            cases = list(CASES[1:3]) + cases
        done = compare(mode, model, draft, cases, scratch)
        ratios = [
            (float(ratio), quantity)
            for quantity, ratio in re.findall(rf'^{mode} (\w+): .* ratio (\S+)', done.stdout, re.M)
        ]
        worst, quantity = max(ratios, default=(float('inf'), 'nothing compared'))
        right = bool(ratios) and (done.returncode != 0) == must_fail
        good = good and right
        verdict = 'WRONG' if not right else 'fails, as it must' if must_fail else 'ok'
        print(f'  {mode:7} {worst:10.3f} of the bound  {quantity:15} {verdict}')
        if not right:
            print(done.stdout + done.stderr)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--checkpoint', required=True, type=pathlib.Path)
    parser.add_argument('--wrong', type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        good = check(options.checkpoint, False, pathlib.Path(scratch))
        if options.wrong:
            good = check(options.wrong, True, pathlib.Path(scratch)) and good
    sys.exit(not good)


if __name__ == '__main__':
    main()
