#!/usr/bin/env python3
# Runs the program on the recorded prompts of tests/golden and holds what it computes against the records with
# tests/golden/compare.py, mode by mode; the same on wrong weights must fail. Prints one line a comparison; exit code 1 where one
# does not end as it must. Makes checkpoints by the recipe, unpacks records and writes traces under --work. Called by
# scripts/test-golden.
# usage: golden_runs.py --monostep PROGRAM --work FOLDER [--backend cpu|gpu] [--cut step|layer|stage] [--jobs N]
#                       [--realdims FOLDER] [--only REGEX]
# --realdims: also the record case_600 with its bounds.json in FOLDER, which is too large to lie here.
import argparse
import concurrent.futures
import dataclasses
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / 'tests/golden'
CHECKPOINTS = {'micro': ('micro', 3), 'clone40': ('clone40', 1), 'wrong': ('micro', 4)}  # geometry, seed
SHORT = ('case_001', 'case_002', 'case_003')
LONG = ('case_017', 'case_040', 'case_096')


@dataclasses.dataclass(frozen=True)
class Comparison:
    folder: str  # of tests/golden
    cases: tuple  # compared together: the bounds are for quantiles over all rows
    mode: str
    tp: int = 1
    checkpoint: str = ''  # of CHECKPOINTS; empty: the folder's own
    must_fail: bool = False


def comparisons():
    """The longest first, so that the cores end together."""
    for mode in ('decode', 'step', 'ffn', 'layer', 'draft'):
        yield Comparison('clone40', ('case_033',), mode)
    yield Comparison('clone40', ('case_033',), 'layer', tp=8)
    for mode in ('layer', 'step', 'ffn', 'draft', 'free', 'decode'):
        yield Comparison('micro', LONG, mode)
        yield Comparison('micro', SHORT[1:] if mode == 'step' else SHORT, mode)  # step halves the prompt
    for mode in ('layer', 'step', 'ffn', 'free'):
        yield Comparison('micro', ('mask_040',), mode)
    for mode in ('layer', 'free'):
        yield Comparison('micro', LONG, mode, tp=2)
    for mode in ('layer', 'step', 'ffn', 'draft', 'free', 'decode'):
        yield Comparison('micro', ('case_017',), mode, checkpoint='wrong', must_fail=True)


@dataclasses.dataclass(frozen=True)
class Verdict:
    passed: bool
    worst: float  # the largest error as a share of its bound
    quantity: str


def read_verdict(mode, text):
    """What compare.py said, or None where it did not come to an end."""
    ratios = [(float(ratio), quantity) for quantity, ratio in re.findall(rf'^{mode} (\w+): .* ratio (\S+)', text, re.M)]
    end = re.search(rf'^{mode}: (ok|FAIL) \(', text, re.M)
    if not end or not ratios:
        return None
    worst, quantity = max(ratios)
    return Verdict(end.group(1) == 'ok', worst, quantity)


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


REALDIMS = tuple(Comparison('realdims', ('case_600',), mode) for mode in ('free', 'cached', 'ffn'))


@dataclasses.dataclass(frozen=True)
class Setting:
    program: pathlib.Path
    work: pathlib.Path
    backend: str = 'cpu'
    cut: str = ''  # empty: the program's choice
    realdims: pathlib.Path | None = None

    def bounds(self, folder):
        return (self.realdims if folder == 'realdims' else GOLDEN / folder) / 'bounds.json'

    def launches(self, comparison):
        """Options of a trace. Ranks of one device take turns, so that there only one cut is."""
        cut = ['--cut', self.cut] if self.cut and (self.backend == 'cpu' or comparison.tp == 1) else []
        return ['--backend', self.backend, *cut]


def prepare(setting):
    """Checkpoints by the recipe, and the records as they were before packing."""
    program, work = setting.program, setting.work
    shutil.rmtree(work, ignore_errors=True)
    (work / 'traces').mkdir(parents=True)
    checkpoints = dict(CHECKPOINTS)
    if setting.realdims:
        checkpoints['realdims'] = ('realdims', 1)
        (work / 'records/realdims').mkdir(parents=True)
        shutil.copy(setting.realdims / 'case_600.safetensors', work / 'records/realdims')
    for name, (geometry, seed) in checkpoints.items():
        code, words = run([program, 'make-model', '--geometry', geometry, '--seed', seed, '--out', work / name])
        if code:
            sys.exit(words)
    for packed in GOLDEN.glob('*/*.safetensors.xz'):
        record = work / 'records' / packed.parent.name / packed.stem
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_bytes(lzma.decompress(packed.read_bytes()))


def compare(setting, comparison):
    """Whether the comparison ended as it must, its line of the table, and the whole text where it did not."""
    work = setting.work
    checkpoint = comparison.checkpoint or comparison.folder
    pairs, failed = [], ''
    for case in comparison.cases:
        record = work / 'records' / comparison.folder / f'{case}.safetensors'
        out = work / 'traces' / f'{checkpoint}.{case}.{comparison.mode}.tp{comparison.tp}.safetensors'
        code, words = run([setting.program, 'trace', '--model', work / checkpoint, '--case', record, '--mode', comparison.mode,
                           '--tp', comparison.tp, '--out', out, *setting.launches(comparison)])
        failed += words if code else ''
        pairs += [out, record]
    words = failed or run([sys.executable, GOLDEN / 'compare.py', '--mode', comparison.mode, '--bounds',
                           setting.bounds(comparison.folder), *pairs])[1]
    return judge(comparison, words)


def judge(comparison, words):
    verdict = read_verdict(comparison.mode, words)
    good = verdict is not None and verdict.passed != comparison.must_fail
    if not good:
        end = 'FAILED'
    else:
        end = 'fails, as it must' if comparison.must_fail else 'ok'
    name = f'{comparison.folder} {" ".join(case.split("_")[1] for case in comparison.cases)}'
    name += ' (mask)' if 'mask_040' in comparison.cases else ''
    name += ' on wrong weights' if comparison.checkpoint else ''
    worst = f'{verdict.worst:10.2f}  {verdict.quantity:14}' if verdict else f'{"none":>10}  {"":14}'
    return good, f'{name:30} {comparison.mode:7} {comparison.tp:2} {worst} {end}', '' if good else words


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--monostep', required=True)
    parser.add_argument('--work', required=True, type=pathlib.Path)
    parser.add_argument('--backend', choices=('cpu', 'gpu'), default='cpu')
    parser.add_argument('--cut', choices=('step', 'layer', 'stage'), default='')
    parser.add_argument('--jobs', type=int, help='comparisons at a time (default: one a core, on the gpu one)')
    parser.add_argument('--realdims', type=pathlib.Path)
    parser.add_argument('--only', default='', help='regular expression on "FOLDER MODE tpN"')
    options = parser.parse_args()
    setting = Setting(options.monostep, options.work, options.backend, options.cut, options.realdims)
    prepare(setting)
    jobs = options.jobs or (1 if options.backend == 'gpu' else os.cpu_count())
    wanted = [*(REALDIMS if options.realdims else ()), *comparisons()]
    wanted = [item for item in wanted if re.search(options.only, f'{item.folder} {item.mode} tp{item.tp}')]
    print(f'{"records":30} {"mode":7} tp worst/bound  {"quantity":14}')
    num_bad = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as workers:
        for good, line, words in workers.map(lambda item: compare(setting, item), wanted):
            print(line, words, sep='\n' if words else '', flush=True)
            num_bad += not good
    print(f'{num_bad} comparisons did not end as they must')
    return 1 if num_bad else 0


if __name__ == '__main__':
    sys.exit(main())
