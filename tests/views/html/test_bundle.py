"""One script of many modules: what the linker refuses, and that the whole is what a browser will run."""

import hashlib
import html
import re
from base64 import b64encode
from itertools import product

import pytest

from regard.views.html import bundle
from views.html.decoded import decode
from views.recordings import random_map, recorded


@pytest.fixture
def link(tmp_path):
    """A function that links modules given by their names; "start" is where it begins."""

    def call(sources):
        for name, source in sources.items():
            path = tmp_path / f"{name}.js"
            path.parent.mkdir(exist_ok=True)
            path.write_text(source, encoding="utf-8")
        return bundle.bundle_modules("start", tmp_path)

    return call


def names(script):
    return re.findall(r"^// ([\w/]+)\.js$", script, re.MULTILINE)


def test_modules_of_any_folder_stand_behind_what_they_need_and_run(link, node):
    script = link(
        {
            "start": 'import { b } from "./one/second.js";\nimport {\n  a,\n  twice,\n} from "./two/first.js";\n'
            "console.log(twice(a + b));\n",
            "one/second": 'import { a } from "../two/first.js";\n\nexport const b = a + 1;\n',
            "two/first": "export const a = 20;\n\n"
            "export function twice(/** @type {number} */ x) {\n  return 2 * x;\n}\n",
        }
    )
    assert names(script) == ["two/first", "one/second", "start"]
    assert node("run", script) == ["82"]


def test_comments_go_and_code_stays(link, node):
    script = link(
        {
            "start": "/** What it is. */\n// why\nlet found = 1;\n"
            "  /** @type {{ x: import('./x.js').X }} */ (console).log(found);\nfound += 1; // more\n"
            '/**\n * @param {import("./x.js").X} x\n */\n'
            'function said(x) {\n  console.log(x, "// no comment");\n}\nsaid(found);\n'
        }
    )
    assert "What it is" not in script
    assert "why" not in script
    assert "import" not in script
    assert node("run", script) == ["1", "2 // no comment"]


@pytest.mark.parametrize(
    ("kind", "exported"),
    [*product(["const", "class", "function", "function*", "async function"], [False, True]), ("let", False)],
)
def test_modules_may_use_one_name_for_two_things(link, node, kind, exported):
    """What a module declares is seen by itself, and an export by those that import it."""
    body = " = 1;" if kind in ("const", "let") else " {}" if kind == "class" else "() {}"
    script = link(
        {
            "start": f'import {{ one{", shared" * exported} }} from "./x.js";\nimport {{ two }} from "./y.js";\n'
            f"console.log(one(), typeof shared, two());\n",
            "x": f"{'export ' * exported}{kind} shared{body}\nexport function one() {{\n  return typeof shared;\n}}\n",
            "y": "export function two() {\n  return typeof shared;\n}\n",
        }
    )
    type_ = "number" if kind in ("const", "let") else "function"
    assert node("run", script) == [f"{type_} {type_ if exported else 'undefined'} undefined"]


@pytest.mark.parametrize(
    "line",
    [
        'import { a as b } from "./x.js";',
        'import a from "./x.js";',
        "import { a } from './x.js';",
        'import { a } from "./x.js"',
        'import { a } from "./x.js"; // why',
        'import { a } from "x";',
        'import { a } from "../../x.js";',
        'const x = await import("./x.js");',
        "  console.log(import.meta.url);",
        "export default function a() {}",
        "export { a };",
        "export let a = 1;",
        'export * from "./x.js";',
        'const end = "</SCRIPT>";',
        "const a = 1; // </script",
        'const comment = "<!--";',
    ],
)
def test_what_cannot_be_linked_is_refused(link, line):
    with pytest.raises(ValueError, match=r"^start\.js: .* cannot be linked$"):
        link({"start": f"{line}\n", "x": "export const a = 1;\n"})


def test_modules_that_need_each_other_are_refused(link):
    with pytest.raises(ValueError, match="cycle"):
        link({"start": 'import { a } from "./x.js";\nexport const b = 1;\n', "x": 'import { b } from "./start.js";\n'})


def test_the_page_has_every_module_once():
    modules = {path.relative_to(bundle.STATIC).with_suffix("").as_posix() for path in bundle.STATIC.rglob("*.js")}
    # What runs beside a frame, and what only a live page has.
    other = {name for name in modules if name.split("/")[0] in ("notebook", "live", "model", "next")}
    assert sorted(names(bundle.bundle_modules("main"))) == sorted(modules - other)


def test_the_policy_names_the_script_and_the_style_that_stand_there():
    text, said = bundle.assemble("main", "a title", bundle.data_elements(facts=b"{}", numbers=b""))
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    assert policy == said

    def digest(tag):
        content = re.search(rf"<{tag}>(.*?)</{tag.split()[0]}>", text, re.DOTALL)[1].encode()
        return f"'sha256-{b64encode(hashlib.sha256(content).digest()).decode()}'"

    assert sorted(part.strip() for part in policy.split(";")) == [
        "base-uri 'none'",
        "default-src 'none'",
        "form-action 'none'",
        "img-src data:",
        "script-src " + digest('script type="module"'),
        "style-src " + digest("style"),
    ]
    assert "\r" not in text  # which a browser reads as \n, and the hashes would not be those
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 3
    assert text.count("<style") == text.count("</style") == 1


def test_dollars_in_titles_and_tokens_are_dollars(node):
    tokens = ["$policy", "${script}", "$$", "$", "\\1 $1 $& {title} %s"]
    recording = recorded(random_map(5, 5))
    recording["layers.0"].label(tokens)
    text = recording.to_html(title=" ".join(tokens), model="$model")
    assert f"<title>{html.escape(' '.join(tokens))}</title>" in text
    facts = decode(node, text).facts
    assert facts["texts"] == [{"tokens": tokens}]
    assert (facts["title"], facts["model"]) == (" ".join(tokens), "$model")
