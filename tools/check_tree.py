#!/usr/bin/env python3
# Checks the tree against the rules of STYLE.md and ARCHITECTURE.md that a program can check; prints "path:line: rule: words".
# Reads the files under the given root (default: this checkout), tools/modules.txt and tools/exempt.txt. Exit code 1 on a
# finding; warnings do not fail. Called by scripts/test and ctest; each rule has a class in tests/tools/check_tree_test.py.
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cpp_text  # noqa: E402

CPP = {'.cc', '.h', '.cu', '.cuh'}
HASH_COMMENTED = {'.py', '.sh', '.cmake', ''}
CHECKED_FOLDERS = ('src', 'tests', 'fuzz', 'bench', 'tools', 'scripts', '.ci', 'docs')
FILE_WARNS, FILE_FAILS = 500, 800
FUNCTION_FAILS, STAGE_FAILS = 80, 150
MAX_MACROS = 10
STAGE_BODY = re.compile(r'src/(cpu/stage[^/]*\.cc|gpu/device/.*)$')
ALLOWED_WORD = re.compile(r'\b(draft[ -]|candidate[ -]|vision\.)blocks?\b', re.IGNORECASE)  # vision.blocks: tensor names
WORD = re.compile(r'\bblocks?\b', re.IGNORECASE)
IDENTIFIER = re.compile(r'\b(?:\w*_)?blocks?(?:_\w*)?\b|\b\w*Blocks?(?![a-z])\w*')
ALLOWED_IDENTIFIER = re.compile(r'draft|candidate|dspark|^weight_block_size$', re.IGNORECASE)
ABSOLUTE = re.compile(r'(?<![\w.}$*>/-])/(work|tmp|root|home|mnt|opt)(?=[/"\'\s)`;:,]|$)')
OPEN_WORK = re.compile(r'\bTO[D]O\b(?!\(#?\d+\))')


class Tree:
    """The files of a checkout and what the rules have to say about them."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.errors, self.warnings = [], []
        self.module_line = {}
        for line_idx, line in enumerate(self.text('tools/modules.txt').splitlines()):
            self.module_line.update({module: line_idx for module in line.split()})
        self.exempt = {}
        self.read_exemptions()

    def text(self, path):
        file = self.root / path
        return file.read_text(encoding='utf-8', errors='replace') if file.is_file() else ''

    def read_exemptions(self):
        for number, line in enumerate(self.text('tools/exempt.txt').splitlines(), 1):
            if not line or line.startswith('#'):
                continue
            entry = re.fullmatch(r'(mirrored-test|file-size) (\S+): \S.*', line)
            if not entry:
                self.error('tools/exempt.txt', number, 'exemption', 'expected "<rule> <path>: <reason>"')
            elif not (self.root / entry.group(2)).is_file():
                self.error('tools/exempt.txt', number, 'exemption', f'{entry.group(2)} does not exist')
            else:
                self.exempt.setdefault(entry.group(1), set()).add(entry.group(2))

    def files(self, *folders, suffixes=None):
        """Relative paths, sorted, of the text files of some folders."""
        for folder in folders:
            for file in sorted((self.root / folder).rglob('*')):
                path = file.relative_to(self.root)
                known = CPP | HASH_COMMENTED | {'.txt', '.md', '.svg'} if suffixes is None else suffixes
                if file.is_file() and file.suffix in known and not {'data', 'golden', 'corpus', '__pycache__'} & set(path.parts):
                    yield path.as_posix()

    def error(self, path, line, rule, words):
        self.errors.append(f'{path}:{line}: {rule}: {words}')

    def warn(self, path, line, rule, words):
        self.warnings.append(f'{path}:{line}: warning: {rule}: {words}')


def include_order(tree):
    """A file of src/<module>/ includes its own module and modules of earlier lines of tools/modules.txt only."""
    for path in tree.files('src', suffixes=CPP):
        module = path.split('/')[1]
        if module not in tree.module_line:
            tree.error(path, 1, 'include-order', f'module "{module}" is not in tools/modules.txt')
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            included = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if included:
                check_include(tree, path, number, module, included.group(1))


def check_include(tree, path, number, module, included):
    target = included.split('/')[0]
    if '/' not in included or target not in tree.module_line:
        tree.error(path, number, 'include-order', f'"{included}" is not relative to src/ (module/file.h)')
    elif target != module and tree.module_line[target] >= tree.module_line[module]:
        tree.error(path, number, 'include-order', f'"{module}" may not include "{target}" ({included})')


def mirrored_test(tree):
    """src/<module>/<x>.cc has tests/<module>/<x>_test.cc. The subcommands in apps are tested through the program."""
    for path in tree.files('src', suffixes={'.cc'}):
        wanted = 'tests/' + path.removeprefix('src/').removesuffix('.cc') + '_test.cc'
        exempt = path.startswith('src/apps/') or path in tree.exempt.get('mirrored-test', ())
        if not exempt and not (tree.root / wanted).is_file():
            tree.error(path, 1, 'mirrored-test', f'{wanted} does not exist')


def file_size(tree):
    """A file warns above 500 lines and fails above 800, tables of constants (tools/exempt.txt) excepted."""
    for path in tree.files(*CHECKED_FOLDERS, suffixes=CPP | HASH_COMMENTED):
        num_lines = tree.text(path).count('\n')
        if path in tree.exempt.get('file-size', ()):
            continue
        if num_lines > FILE_FAILS:
            tree.error(path, num_lines, 'file-size', f'{num_lines} lines, at most {FILE_FAILS}')
        elif num_lines > FILE_WARNS:
            tree.warn(path, num_lines, 'file-size', f'{num_lines} lines, aim at 300')


def function_size(tree):
    """A function has at most 80 lines, a stage body 150."""
    for path in tree.files('src', 'tests', 'fuzz', 'bench', suffixes=CPP):
        limit = STAGE_FAILS if STAGE_BODY.match(path) else FUNCTION_FAILS
        for name, line, num_lines in cpp_text.functions(tree.text(path)):
            if num_lines > limit:
                tree.error(path, line, 'function-size', f'{name} has {num_lines} lines, at most {limit}')


def opening_comment(tree):
    """Every source file, script and CMake file opens with a comment that says what it is."""
    for path in tree.files(*CHECKED_FOLDERS, suffixes=CPP | HASH_COMMENTED):
        lines = tree.text(path).splitlines() + ['', '']
        first = lines[1] if lines[0].startswith('#!') else lines[0]
        marker = r'// \S' if pathlib.Path(path).suffix in CPP else r'(# |\"\"\")\S'
        if not re.match(marker, first):
            tree.error(path, 1, 'opening-comment', 'the first line is not a comment that says what the file is')


def word_rule(tree):
    """The word that means four things is not used alone in src: say CTA, page, group or layer."""
    for path in tree.files('src', suffixes=CPP):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            rest = ALLOWED_WORD.sub('', line)
            unclear = WORD.findall(rest) + [name for name in IDENTIFIER.findall(rest) if not ALLOWED_IDENTIFIER.search(name)]
            if unclear:
                tree.error(path, number, 'word', f'"{unclear[0]}" is ambiguous: say CTA, page, group or layer')


def pragma_once(tree):
    """Every header has #pragma once."""
    for path in tree.files('src', 'tests', 'fuzz', 'bench', suffixes={'.h', '.cuh'}):
        if not re.search(r'^#pragma once$', tree.text(path), re.MULTILINE):
            tree.error(path, 1, 'pragma-once', 'the header has no "#pragma once"')


def architecture_names(tree):
    """Every path and every function in backticks in ARCHITECTURE.md exists; functions are searched in src/."""
    source = '\n'.join(cpp_text.LEXEME.sub(' ', tree.text(path)) for path in tree.files('src', suffixes=CPP))
    for number, line in enumerate(tree.text('ARCHITECTURE.md').splitlines(), 1):
        for quoted in re.findall(r'`([^`]+)`', line):
            missing = missing_name(tree, source, quoted.strip())
            if missing:
                tree.error('ARCHITECTURE.md', number, 'architecture', missing)


def missing_name(tree, source, quoted):
    """What of one quoted text does not exist, or None. Placeholders (<name>, build/) and plain words are not checked."""
    function = re.match(r'((?:\w+::)*)(~?\w+)\s*\(', quoted) or re.fullmatch(r'((?:\w+::)+)(\w+)', quoted)
    if function:
        for scope in function.group(1).split('::')[:-1]:
            if not re.search(rf'\b(class|struct|namespace|enum class)\b[^;{{]*\b{scope}\b', source):
                return f'"{scope}" of "{quoted}" is not in src/'
        return None if re.search(rf'\b{function.group(2)}\b', source) else f'function "{quoted}" is not in src/'
    path = re.fullmatch(r'[\w./*-]+/[\w./*-]*|[\w-]+\.(?:h|cc|cu|cuh|py|md|txt|svg|json|sh)', quoted)
    if not path or quoted.startswith('build/') or quoted in ('config.json',):
        return None
    pattern = quoted.strip('/')
    if any(any(tree.root.glob(base + pattern)) for base in ('', 'src/')):
        return None
    if '/' not in pattern and any(any((tree.root / base).rglob(pattern)) for base in ('src', 'tools', 'docs', 'scripts')):
        return None
    return f'path "{quoted}" does not exist'


def absolute_path(tree):
    """No path of one machine in the tree."""
    root_pages = sorted(file.name for file in tree.root.glob('*.md')) + ['CMakeLists.txt', 'CMakePresets.json']
    for path in [*tree.files(*CHECKED_FOLDERS), *root_pages]:
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            found = ABSOLUTE.search(line)
            if found:
                tree.error(path, number, 'absolute-path', f'"{found.group()}" is a place on one machine')


def todo_issue(tree):
    """A note of work to do names its issue."""
    for path in tree.files(*CHECKED_FOLDERS):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if OPEN_WORK.search(line):
                tree.error(path, number, 'todo', 'name the open issue in parentheses')


def macro_count(tree):
    """At most ten macros in the project."""
    macros = {}
    for path in tree.files('src', suffixes=CPP):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            defined = re.match(r'\s*#\s*define\s+(\w+)', line)
            if defined:
                macros.setdefault(defined.group(1), (path, number))
    for name in list(macros)[MAX_MACROS:]:
        path, number = macros[name]
        tree.error(path, number, 'macros', f'{name} is macro {len(macros)} of at most {MAX_MACROS} in the project')


RULES = (include_order, mirrored_test, file_size, function_size, opening_comment, word_rule, pragma_once,
         architecture_names, absolute_path, todo_issue, macro_count)


def check(root, rules=RULES):
    """The tree with the findings of the rules in .errors and .warnings."""
    tree = Tree(root)
    for rule in rules:
        rule(tree)
    return tree


def main(arguments):
    root = arguments[1] if len(arguments) > 1 else pathlib.Path(__file__).resolve().parent.parent
    tree = check(root)
    for line in [*tree.warnings, *tree.errors]:
        print(line)
    print(f'check_tree: {len(RULES)} rules, {len(tree.errors)} findings, {len(tree.warnings)} warnings')
    return 1 if tree.errors else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv))
