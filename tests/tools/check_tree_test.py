# Tests of tools/check_tree.py: for each rule a small tree that it accepts and one that it must reject, by name and place.
# Run by ctest (one test for each class) and by scripts/test.
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'tools'))
import check_tree  # noqa: E402
import cpp_text  # noqa: E402

MODULES = 'base\nmodel\nprogram text\napps\n'


def errors_of(rule, files):
    """What one rule finds in a tree of {path: text}."""
    return tree_of(rule, files).errors


def tree_of(rule, files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in {'tools/modules.txt': MODULES, **files}.items():
            file = pathlib.Path(root) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding='utf-8')
        return check_tree.check(root, [rule])


class RuleCase(unittest.TestCase):
    def accepts(self, rule, files):
        self.assertEqual(errors_of(rule, files), [])

    def rejects(self, rule, files, *expected):
        """The rule finds exactly these "path:line" places."""
        self.assertEqual([':'.join(error.split(':')[:2]) for error in errors_of(rule, files)], list(expected))


class IncludeOrderTest(RuleCase):
    def test_accepts_own_and_earlier_modules(self):
        self.accepts(check_tree.include_order,
                     {'src/text/a.cc': '#include "text/a.h"\n#include <vector>\n#include "model/b.h"\n#include "base/c.h"\n'})

    def test_rejects_a_later_module(self):
        self.rejects(check_tree.include_order, {'src/base/a.cc': '\n#include "model/b.h"\n'}, 'src/base/a.cc:2')

    def test_rejects_a_module_of_the_same_line(self):
        self.rejects(check_tree.include_order, {'src/text/a.h': '#include "program/b.h"\n'}, 'src/text/a.h:1')

    def test_rejects_an_include_that_is_not_relative_to_src(self):
        self.rejects(check_tree.include_order, {'src/text/a.h': '#include "b.h"\n# include "../base/c.h"\n'},
                     'src/text/a.h:1', 'src/text/a.h:2')

    def test_rejects_a_module_that_has_no_place_in_the_order(self):
        self.rejects(check_tree.include_order, {'src/utils/a.cc': ''}, 'src/utils/a.cc:1')


class MirroredTestTest(RuleCase):
    def test_accepts_a_test_at_the_mirrored_path_and_none_for_apps(self):
        self.accepts(check_tree.mirrored_test,
                     {'src/model/a.cc': '', 'tests/model/a_test.cc': '', 'src/apps/main.cc': '', 'src/model/b.h': ''})

    def test_rejects_a_source_without_its_test(self):
        self.rejects(check_tree.mirrored_test, {'src/model/a.cc': '', 'tests/base/a_test.cc': ''}, 'src/model/a.cc:1')

    def test_accepts_a_listed_exemption_with_a_reason(self):
        self.accepts(check_tree.mirrored_test, {'src/text/table.cc': '', 'tools/exempt.txt':
                                                'mirrored-test src/text/table.cc: generated numbers\n'})


class ExemptionTest(RuleCase):
    def test_rejects_an_exemption_without_a_reason_or_of_an_unknown_rule(self):
        self.rejects(check_tree.mirrored_test,
                     {'a.cc': '', 'tools/exempt.txt': 'mirrored-test a.cc:\nword a.cc: we like it\n'},
                     'tools/exempt.txt:1', 'tools/exempt.txt:2')

    def test_rejects_an_exemption_of_a_file_that_is_gone(self):
        self.rejects(check_tree.mirrored_test, {'tools/exempt.txt': '# note\nfile-size src/a.cc: table\n'},
                     'tools/exempt.txt:2')


class FileSizeTest(RuleCase):
    def test_accepts_500_lines_without_a_warning(self):
        tree = tree_of(check_tree.file_size, {'src/base/a.cc': '\n' * 500})
        self.assertEqual((tree.errors, tree.warnings), ([], []))

    def test_warns_above_500_lines(self):
        tree = tree_of(check_tree.file_size, {'src/base/a.cc': '\n' * 501})
        self.assertEqual((len(tree.errors), len(tree.warnings)), (0, 1))

    def test_rejects_above_800_lines_unless_it_is_a_listed_table(self):
        files = {'src/base/a.cc': '\n' * 801}
        self.rejects(check_tree.file_size, files, 'src/base/a.cc:801')
        self.accepts(check_tree.file_size, {**files, 'tools/exempt.txt': 'file-size src/base/a.cc: generated table\n'})


class FunctionSizeTest(RuleCase):
    def function(self, num_lines):
        return 'int f(int a,\n      int b) {\n' + '  a += b;\n' * (num_lines - 2) + '}\n'

    def test_accepts_80_lines(self):
        self.accepts(check_tree.function_size, {'src/base/a.cc': self.function(80)})

    def test_rejects_81_lines_at_its_first_line(self):
        self.rejects(check_tree.function_size, {'src/base/a.cc': '\n' + self.function(81)}, 'src/base/a.cc:3')

    def test_rejects_a_long_method_and_a_long_constructor(self):
        body = '{\n' + '    ;\n' * 80 + '  }\n'
        self.rejects(check_tree.function_size, {'src/base/a.h': (
            f'template <class T>\nclass A : public B {{\n public:\n  A() : a_{{1}}, b_(2) {body}  int f() const {body}}};\n')},
            'src/base/a.h:4', 'src/base/a.h:86')

    def test_gives_stage_bodies_150_lines(self):
        files = {'src/cpu/stage_attend.cc': self.function(150), 'src/cpu/stages.cc': self.function(151)}
        self.rejects(check_tree.function_size, files, 'src/cpu/stages.cc:2')

    def test_does_not_take_a_table_or_a_type_for_a_function(self):
        rows = '  {f(1), 2},\n' * 100
        self.accepts(check_tree.function_size,
                     {'src/base/a.cc': f'const Row kRows[] = {{\n{rows}}};\nstruct S {{\n' + '  int a = 0;\n' * 100 + '};\n'})

    def test_is_not_misled_by_braces_in_comments_and_literals(self):
        text = 'void f() {\n  // }}}\n  g("}", \'}\', R"(}\n})");\n}\nvoid h() {}\n'
        self.assertEqual(cpp_text.functions(text), [('f', 1, 5), ('h', 6, 1)])


class OpeningCommentTest(RuleCase):
    def test_accepts_a_comment_first_or_after_the_interpreter_line(self):
        self.accepts(check_tree.opening_comment, {'src/base/a.h': '// What it is.\n#pragma once\n',
                                                  'scripts/run': '#!/usr/bin/env bash\n# What it does.\n'})

    def test_rejects_a_file_that_opens_with_code_or_is_empty(self):
        self.rejects(check_tree.opening_comment,
                     {'src/base/a.h': '#pragma once\n// late\n', 'scripts/run': '#!/usr/bin/env bash\nset -e\n', 'src/base/b.cc': ''},
                     'src/base/a.h:1', 'src/base/b.cc:1', 'scripts/run:1')


class WordTest(RuleCase):
    def test_accepts_config_keys_and_the_two_compounds(self):
        self.accepts(check_tree.word_rule, {'src/model/a.h': (
            'int dspark_block_size;  // rows of a draft block\nint candidate_topk_blocks;\nauto key = "weight_block_size";\nO_NONBLOCK | unblocked;\n')})

    def test_rejects_the_bare_word_in_comments_and_names(self):
        self.rejects(check_tree.word_rule, {'src/model/a.h': '// one Block of 32\nint num_blocks;\nint block;\nint page;\nstruct KvBlock;\n'},
                     'src/model/a.h:1', 'src/model/a.h:2', 'src/model/a.h:3', 'src/model/a.h:5')


class PragmaOnceTest(RuleCase):
    def test_accepts_a_header_with_it_and_sources_without(self):
        self.accepts(check_tree.pragma_once, {'src/base/a.h': '// A.\n#pragma once\n', 'src/base/a.cc': ''})

    def test_rejects_a_header_without_it(self):
        self.rejects(check_tree.pragma_once, {'src/base/a.h': '// #pragma once\n#ifndef A\n'}, 'src/base/a.h:1')


class ArchitectureTest(RuleCase):
    SOURCE = {'src/program/step.h': 'namespace monostep {\nclass Backend {\n  int decode(int row);\n};\nint build_step();\n}\n'}

    def check_page(self, page, *expected):
        self.rejects(check_tree.architecture_names, {**self.SOURCE, 'ARCHITECTURE.md': page}, *expected)

    def test_accepts_what_exists_and_ignores_placeholders_and_plain_words(self):
        self.check_page('`src/program/step.h` `program/step.h` `step.h` `src/*/step.h` `tools/` `build_step()` `Backend::decode(row)`\n'
                        '`Backend::decode` `build/<preset>/monostep` `src/<module>/` `Geometry` `--mono auto|on` a/b.cc\n')

    def test_rejects_a_path_that_does_not_exist(self):
        self.check_page('`src/program/step.h`\n`src/program/gone.h` `gone.cc` `scripts/gone`\n',
                        'ARCHITECTURE.md:2', 'ARCHITECTURE.md:2', 'ARCHITECTURE.md:2')

    def test_rejects_a_function_or_its_class_that_does_not_exist(self):
        self.check_page('`gone()`\n`Backend::gone`\n`Gone::decode(row)`\n',
                        'ARCHITECTURE.md:1', 'ARCHITECTURE.md:2', 'ARCHITECTURE.md:3')

    def test_does_not_take_a_name_in_a_comment_for_a_function(self):
        self.rejects(check_tree.architecture_names, {'src/base/a.h': '// gone() is gone\n', 'ARCHITECTURE.md': '`gone()`\n'},
                     'ARCHITECTURE.md:1')


class AbsolutePathTest(RuleCase):
    def test_accepts_relative_paths_system_programs_and_addresses(self):
        self.accepts(check_tree.absolute_path, {'scripts/run': (
            '/usr/bin/python3 tests/tmp/x "$root/work/x" https://example.org/home/x a/home/b\n')})

    def test_rejects_a_place_on_one_machine(self):
        self.rejects(check_tree.absolute_path,
                     {'src/base/a.cc': 'open("/' + 'work/model");\n', 'scripts/run': '\ncp x /' + 'tmp/y\n', 'README.md': '`/' + 'home/me`\n'},
                     'src/base/a.cc:1', 'scripts/run:2', 'README.md:1')


class OpenWorkTest(RuleCase):
    NOTE = '// TO' + 'DO'

    def test_accepts_a_note_with_its_issue(self):
        self.accepts(check_tree.todo_issue, {'src/base/a.cc': self.NOTE + '(#12): later\n'})

    def test_rejects_a_note_without_an_issue(self):
        self.rejects(check_tree.todo_issue, {'src/base/a.cc': self.NOTE + ': later\n' + self.NOTE + '(me)\n'},
                     'src/base/a.cc:1', 'src/base/a.cc:2')


class MacroCountTest(RuleCase):
    def macros(self, count):
        return ''.join(f'#define M{index} {index}\n' for index in range(count))

    def test_accepts_ten(self):
        self.accepts(check_tree.macro_count, {'src/base/a.h': self.macros(10)})

    def test_rejects_the_eleventh(self):
        self.rejects(check_tree.macro_count, {'src/base/a.h': self.macros(10), 'src/model/b.h': '\n#define LATE(x) x\n'},
                     'src/model/b.h:2')


class ProgramTest(unittest.TestCase):
    def test_exit_code_tells_whether_there_were_findings(self):
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(check_tree.main(['check_tree.py', root]), 0)
            (pathlib.Path(root) / 'src/base').mkdir(parents=True)
            (pathlib.Path(root) / 'src/base/a.h').write_text('int a;\n')
            self.assertEqual(check_tree.main(['check_tree.py', root]), 1)
            self.assertIn('src/base/a.h:1: pragma-once', printed.getvalue())

    def test_every_rule_is_run(self):
        named = {value for value in vars(check_tree).values()
                 if callable(value) and getattr(value, '__code__', None) and value.__code__.co_varnames[:1] == ('tree',)
                 and value.__code__.co_argcount == 1}
        self.assertEqual(named, set(check_tree.RULES))


if __name__ == '__main__':
    unittest.main()
