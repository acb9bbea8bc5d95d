"""One script of many modules: what the linker refuses, and that the whole is what a browser will run."""

import hashlib
import html
import re
import subprocess
from base64 import b64encode
from shutil import which

import pytest
import torch
from carried import opened, recorded

from regard.lens.maps.map import AttentionMap
from regard.views.html import bundle

MODULES = {path.stem: path for path in sorted(bundle.STATIC.rglob("*.js"))}


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A function that links modules given by their names; "start" is where it begins."""
    monkeypatch.setattr(bundle, "STATIC", tmp_path)

    def call(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.js").write_text(source, encoding="utf-8")
        return bundle.linked.__wrapped__("start")

    return call


def test_modules_stand_behind_what_they_need_and_run(link, node, tmp_path):
    script = link(
        start='import { b } from "./second.js";\nimport {\n  a,\n  twice,\n} from "./first.js";\n'
        "console.log(twice(a + b));\n",
        second='import { a } from "./first.js";\n\nexport const b = a + 1;\n',
        first="export const a = 20;\n\nexport function twice(/** @type {number} */ x) {\n  return 2 * x;\n}\n",
    )
    assert re.findall(r"^// (\w+)\.js$", script, re.MULTILINE) == ["first", "second", "start"]
    (tmp_path / "all.mjs").write_text(script)
    assert node(tmp_path / "all.mjs") == "82\n"


def test_comments_go_and_code_stays(link, node, tmp_path):
    script = link(
        start="/** What it is. */\n// why\nlet found = 1;\n"
        "  /** @type {{ x: import('./x.js').X }} */ (globalThis).console.log(found);\nfound += 1; // more\n"
        '/**\n * @param {import("./x.js").X} x\n */\n'
        'function said(x) {\n  console.log(x, "// no comment");\n}\nsaid(found);\n'
    )
    assert "What it is" not in script
    assert "why" not in script
    (tmp_path / "all.mjs").write_text(script)
    assert node(tmp_path / "all.mjs") == "1\n2 // no comment\n"


@pytest.mark.parametrize("second", ["const", "let", "class", "function", "function*", "async function", "export const"])
def test_two_modules_may_not_use_a_name(link, second):
    rest = " = 1;" if second.endswith(("const", "let")) else " {}" if second == "class" else "() {}"
    start = 'import { one } from "./other.js";\nfunction shared() {}\none();\n'
    with pytest.raises(ValueError, match=r"shared stands in other\.js and in start\.js: one script has room for one"):
        link(start=start, other=f"export function one() {{}}\n{second} shared{rest}\n")


@pytest.mark.parametrize(
    "line",
    [
        'import { a as b } from "./x.js";',
        'import a from "./x.js";',
        'import * as a from "./x.js";',
        'import "./x.js";',
        "import { a } from './x.js';",
        'import { a } from "./x.js"',
        'import { a } from "./x.js"; // why',
        'import { a } from "x";',
        'import { a } from "../../x.js";',
        'import { a } from "https://example.org/x.js";',
        'import("./x.js");',
        'const x = await import("./x.js");',
        "  console.log(import.meta.url);",
        "export default function a() {}",
        "export { a };",
        'export * from "./x.js";',
        'export { a } from "./x.js";',
        'const end = "</script>";',
        'const end = "</SCRIPT>";',
        "// </script",
        'const comment = "<!--";',
    ],
)
def test_what_cannot_be_linked_is_refused(link, line):
    if line.startswith("//"):
        line = f"const a = 1; {line}"
    with pytest.raises(ValueError, match=r"^start\.js: .* cannot be linked$"):
        link(start=f"{line}\n", x="export const a = 1;\n")


def test_modules_that_need_each_other_are_refused(link):
    with pytest.raises(ValueError, match="cycle"):
        link(start='import { a } from "./x.js";\nexport const b = 1;\n', x='import { b } from "./start.js";\n')


def test_the_page_has_every_module_once_and_it_is_a_module(tmp_path):
    script = bundle.linked("main")
    assert sorted(re.findall(r"^// (\w+)\.js$", script, re.MULTILINE)) == sorted(MODULES)
    if not (found := which("node")):
        pytest.skip("no node here")
    (tmp_path / "all.mjs").write_text(script, encoding="utf-8")
    ended = subprocess.run([found, "--check", tmp_path / "all.mjs"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (tmp_path / "all.mjs").write_text(f"{script}\nconst Data = 1;\n", encoding="utf-8")
    assert subprocess.run([found, "--check", tmp_path / "all.mjs"], capture_output=True).returncode  # it would see that


def test_no_text_of_the_modules_spans_lines():
    """The linker takes the spaces off the beginnings of lines."""
    for name in MODULES:
        for line in MODULES[name].read_text(encoding="utf-8").splitlines():
            assert line.count("`") % 2 == 0, f"{name}.js: {line}"


def test_the_policy_names_the_script_and_the_style_that_stand_there():
    text = bundle.page("a title", b"{}", b"")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    named = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    script, style = (
        re.search(rf"<{tag}>(.*?)</{tag.split()[0]}>", text, re.DOTALL)[1] for tag in ('script type="module"', "style")
    )
    assert named == {
        "default-src": "'none'",
        "script-src": f"'{sha256(script)}'",
        "style-src": f"'{sha256(style)}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert "\r" not in text  # which a browser reads as \n, and the hashes would not be those
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 3
    assert text.count("<style") == text.count("</style") == 1


def sha256(text):
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_dollars_in_titles_and_tokens_are_dollars(node):
    said = ["$policy", "${script}", "$$", "$", "\\1 $1 $& {title} %s"]
    recording = recorded(AttentionMap(torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)))
    recording["layers.0"].label(said)
    text = recording.to_html(title=" ".join(said), model="$model")
    assert f"<title>{html.escape(' '.join(said))}</title>" in text
    (page,) = opened(node, text)
    assert page.facts["texts"] == [{"tokens": said}]
    assert (page.facts["title"], page.facts["model"]) == (" ".join(said), "$model")
