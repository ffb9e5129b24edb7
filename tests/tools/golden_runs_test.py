#!/usr/bin/env python3
# Tests of tools/golden_runs.py: what it makes of the comparison's words. A comparison that stops early never counts, neither as
# passed nor as the failure that wrong weights must give. Run by scripts/test.
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'tools'))
import golden_runs  # noqa: E402

PASSED = 'layer resid: 0.1 / 0.2  bound 1 / 2  ratio 0.10  rows 5\nlayer topk: 0  bound 0.002  ratio 0.00  rows 5\nlayer: ok (0 of 2 quantities)\n'
FAILED = 'layer resid: 3 / 4  bound 1 / 2  ratio 3.00  rows 5  OVER at p50\nlayer: FAIL (1 of 2 quantities)\n'
STOPPED = 'layer resid: 3 / 4  bound 1 / 2  ratio 3.00  rows 5\nTraceback\n'


class JudgeTest(unittest.TestCase):
    right = golden_runs.Comparison('micro', ('case_017',), 'layer')
    wrong = golden_runs.Comparison('micro', ('case_017',), 'layer', checkpoint='wrong', must_fail=True)

    def test_the_right_weights_must_pass(self):
        self.assertEqual(golden_runs.judge(self.right, PASSED)[0], True)
        self.assertEqual(golden_runs.judge(self.right, FAILED)[0], False)

    def test_wrong_weights_must_fail(self):
        self.assertEqual(golden_runs.judge(self.wrong, FAILED)[0], True)
        self.assertEqual(golden_runs.judge(self.wrong, PASSED)[0], False)

    def test_a_comparison_that_stops_early_is_neither(self):
        for words in (STOPPED, '', 'monostep: no such file'):
            for comparison in (self.right, self.wrong):
                good, line, shown = golden_runs.judge(comparison, words)
                self.assertEqual((good, shown), (False, words))
                self.assertIn('FAILED', line)

    def test_the_largest_ratio_is_named(self):
        self.assertEqual(golden_runs.read_verdict('layer', PASSED), golden_runs.Verdict(True, 0.1, 'resid'))


class ComparisonsTest(unittest.TestCase):
    def test_every_mode_has_a_control_on_wrong_weights(self):
        modes = {item.mode for item in golden_runs.comparisons()}
        self.assertEqual(modes, {item.mode for item in golden_runs.comparisons() if item.must_fail})

    def test_every_record_is_compared(self):
        records = {path.name.split('.')[0] for path in golden_runs.GOLDEN.glob('*/*.safetensors.xz')}
        self.assertEqual(records, {case for item in golden_runs.comparisons() if not item.must_fail for case in item.cases})


if __name__ == '__main__':
    unittest.main()
