"""Tokens that try to be more than text: markup, invisible and turning characters, and what no file can hold.

If a payload ran, it would leave its mark: MARK stands on the document's root element, or a dialog opens.
"""

MARK = "data-hacked"
RUN = "document.documentElement.setAttribute('data-hacked','yes')"

HOSTILE = {
    "the end of the script": "</script><img src=x onerror=alert(1)>",
    "an image": f'<img src=x onerror="{RUN}">',
    "an image of a network": "<img src=http://127.0.0.1:9/x.png>",
    "a script": f"<script>{RUN}</script>",
    "a drawing": f"<svg onload={RUN}><style>*{{display:none}}</style></svg>",
    "a frame": f'<iframe srcdoc="<script>parent.{RUN}</script>">',
    "the end of an attribute": f"\"' autofocus onfocus={RUN} x='\"",
    "the end of a frame's source": '"></iframe><img src=x onerror=alert(1)>',
    "the end of the title": f"</title></style></template><script>{RUN}</script>",
    "a template": "${alert(1)} {{constructor.constructor('alert(1)')()}} $title $script",
    "a comment's beginning": "<!--",
    "a comment's end": "--!>",
    "the end of CDATA": "]]>",
    "CDATA": "<![CDATA[",
    "an entity": "&lt;",
    "a number as an entity": "&#60;img&#62;",
    "a formula": "=cmd|'/c calc'!A1",
    "mathtext": "$\\frac{1}{0}$",
    "a name of every object": "__proto__",
    "another": "constructor",
    "a family with joiners": "👩\u200d👩\u200d👧\u200d👦",
    "a skin tone": "👍🏽",
    "a flag": "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "combining marks": "e\u0301\u0323" + "\u0336" * 40,
    "a combining mark alone": "\u0301",
    "Arabic": "السلام، عليكم؟",
    "Hebrew": "שלום! (עולם)",
    "an override": "abc\u202etxt.exe\u202c",
    "isolates": "\u2067right\u2066left\u2069\u2069",
    "marks of direction": "\u200e\u200f",
    "NUL": "a\x00b",
    "control characters": "\x01\x07\x08\x1b[31mred\x7f\x85",
    "line ends": "a\r\nb\nc\u2028d\u2029e",
    "tabs and spaces": "\t  two  spaces  ",
    "half a character": "\ud83d",
    "the other half": "\ude00x",
    "no character": "\uffff\ufffe",
    "private": "\ue000\U0010ffff",
    "ten thousand characters": "x" * 10_000,
    "ten thousand wide ones": "漢" * 10_000,
    "nothing": "",
    "a space": " ",
    "zero width": "\u200b\u200c\u2060\ufeff",
    "zero width within": "riv\u200ber\u00ad",
}
"""A name of what it tries, and the token."""

TOKENS = list(HOSTILE.values())
