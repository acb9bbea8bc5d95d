"""One script of many modules: what the linker refuses, and that the whole is what a browser will run."""

import hashlib
import html
import re
import subprocess
from base64 import b64encode
from shutil import which

import pytest
import torch

from regard.lens.maps.map import AttentionMap
from regard.views.html import bundle
from views.html.decoded import opened, recorded

MODULES = sorted(path.relative_to(bundle.STATIC).with_suffix("").as_posix() for path in bundle.STATIC.rglob("*.js"))


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A function that links modules given by their names; "start" is where it begins."""
    monkeypatch.setattr(bundle, "STATIC", tmp_path)

    def call(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.js").write_text(source, encoding="utf-8")
        return bundle.bundle_modules.__wrapped__("start")

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


@pytest.mark.parametrize("kind", ["const", "let", "class", "function", "function*", "async function"])
def test_modules_may_use_one_name_for_two_things(link, node, tmp_path, kind):
    body = " = 1;" if kind in ("const", "let") else " {}" if kind == "class" else "() {}"
    start = 'import { one } from "./other.js";\nfunction shared() {\n  return 2;\n}\nconsole.log(one(), shared());\n'
    script = link(start=start, other=f"{kind} shared{body}\nexport function one() {{\n  return typeof shared;\n}}\n")
    (tmp_path / "all.mjs").write_text(script)
    assert node(tmp_path / "all.mjs") == f"{'number' if kind in ('const', 'let') else 'function'} 2\n"


@pytest.mark.parametrize("declaration", ["const a = 7;", "function a() {}", "async function a() {}", "class a {}"])
def test_an_export_is_seen_by_those_that_import_it_alone(link, node, tmp_path, declaration):
    script = link(
        start='import { a } from "./x.js";\nimport { b } from "./y.js";\nconsole.log(typeof a, b);\n',
        x=f"export {declaration}\n",
        y="export const b = typeof a;\n",
    )
    (tmp_path / "all.mjs").write_text(script)
    assert node(tmp_path / "all.mjs") == f"{'number' if 'const' in declaration else 'function'} undefined\n"


def test_modules_of_other_folders_are_found(tmp_path, monkeypatch, node):
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    for name, source in {
        "start": 'import { b } from "./one/part.js";\nconsole.log(b);\n',
        "one/part": 'import { a } from "../two/part.js";\n\nexport const b = a + 1;\n',
        "two/part": "export const a = 1;\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.js").write_text(source, encoding="utf-8")
    script = bundle.bundle_modules.__wrapped__("start")
    assert re.findall(r"^// ([\w/]+)\.js$", script, re.MULTILINE) == ["two/part", "one/part", "start"]
    (tmp_path / "all.mjs").write_text(script)
    assert node(tmp_path / "all.mjs") == "2\n"


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
        "export let a = 1;",
        "export var a = 1;",
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
    script = bundle.bundle_modules("main")
    assert sorted(re.findall(r"^// ([\w/]+)\.js$", script, re.MULTILINE)) == MODULES
    if not (found := which("node")):
        pytest.skip("no node here")
    (tmp_path / "all.mjs").write_text(script, encoding="utf-8")
    ended = subprocess.run([found, "--check", tmp_path / "all.mjs"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_the_policy_names_the_script_and_the_style_that_stand_there():
    text = bundle.assemble("a title", b"{}", b"")
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
