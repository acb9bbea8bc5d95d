"""`regard.see`: the page of a text or of a recording, in a notebook or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import InputError, short_repr
from regard.escape import visible
from regard.files import ensure_writable, write_json, write_text
from regard.lens.effects.effects import Effects
from regard.lens.recording.recording import Recording
from regard.lens.text.words import Words
from regard.pretrained import DEFAULT_MODEL, Pretrained, load
from regard.views.html.draft import RenderedPage
from regard.views.html.effects import EFFECT_VIEW, as_list
from regard.views.html.image import PageImage
from regard.views.html.model_page import MODEL_PAGE_MAX_SIZE, build_model_page
from regard.views.html.notebook import notebook_frame
from regard.views.html.page import DEFAULT_MAX_SIZE, Progress, build_page
from regard.views.html.picture import draw_picture
from regard.views.html.quantized_model import quantize_model
from regard.views.source import AttentionSource, HeadNumbers, attention_source


@dataclass(frozen=True, eq=False)
class AttentionPage:
    """A page, which a notebook shows. Where it was written, it can be used as the path of its file."""

    path: Path | None
    """The file; None where none was named."""
    size: int
    """In bytes."""
    facts: dict[str, Any]
    """What is in the page, as `to_dict` returns it."""
    text: str = field(repr=False)
    """The page: HTML."""
    picture: str = field(repr=False)
    """The head that the page opens with, as SVG: what a notebook shows where no script runs."""

    def __fspath__(self) -> str:
        if self.path is None:
            raise InputError('this page is in no file: page.to_html("regard.html") writes it', "out")
        return str(self.path)

    def __repr__(self) -> str:
        return f"AttentionPage({short_repr(self.facts['title'])}, {self})"

    def __str__(self) -> str:
        if self.path is None:
            return f'{self.size / 1e6:.2f} MB, in no file: page.to_html("regard.html") writes it'
        return f"{visible(str(self.path))}: {self.size / 1e6:.2f} MB"

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        return notebook_frame(self.text, self.picture, f"{self.facts['model']}: {self.facts['title']}")

    def to_html(self, path: str | Path | None = None) -> str:
        """The page as a text.

        Args:
            path: the file to write, by an atomic write.

        Raises:
            InputError: the path cannot be written.
        """
        if path is not None:
            write_text(self.text, path)
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """What is in the page: the head and query that it shows first, its layers and heads, and what it omits."""
        return {"path": None if self.path is None else str(self.path), "size": self.size, **self.facts}

    def save(self, path: str | Path) -> None:
        """Write the facts as JSON, by an atomic write.

        Raises:
            InputError: the path cannot be written.
        """
        write_json(self.to_dict(), path)


def see(
    text: str | Path | Recording,
    out: str | Path | None = None,
    *,
    model: str | Path | Pretrained | None = None,
    compare: str | Sequence[str] | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
    layer: int | Sequence[int] | None = None,
    head: HeadNumbers | Sequence[HeadNumbers] | None = None,
    token: str | int | None = None,
    image: Any = None,
    with_model: bool = False,
    max_size: float | int | None = None,
    title: str | None = None,
    effects: Effects | Sequence[Effects] = (),
    progress: Progress = iter,
) -> AttentionPage:
    """A page that shows the attention of a model in a text, and lets you change it.

    In a notebook a cell that ends with it shows the page::

        regard.see("Write a poem about a man fishing on a river bank.", token="bank")

    Elsewhere name a file, and open it in a browser: ``regard.see(text, "regard.html")``.

    Args:
        text: a text that the model reads; or a `Recording`, or the path of one that `Recording.save` wrote.
        out: the file to write; by default none is written.
        model: a name for `regard.load`, or its result; by default the default model, a decoder where a
            text is continued. It belongs to a text, as do the next three.
        compare: other texts, to see how context changes the words that they share.
        target: the output of an encoder-decoder for the text. By default the model generates it.
        max_new_tokens: of a decoder: it first continues the text by at most so many tokens, by greedy decoding, and the
            page shows its attention while it writes. By default the text is only read.
        layer: the layers that are shown, from 0; by default all.
        head: heads that the page must contain whole: (layer, head), or the number of a head in each layer. By default
            all that fit.
        token: the page opens on this word, or the token at this position, in the head where it gives one other token
            of the text the largest weight, as in `regard.explain`. By default the last word that all texts share; of a
            recording, the strongest pair of tokens.
        image: the image that a vision model read, for a recording; as in `Recording.to_html`.
        with_model: whether the page carries the model, in 8 bits: the reader types other texts, and all views follow.
            For a text and an encoder of the BERT family; ``compare`` takes one other text at most, and what selects
            layers, heads or effects is left out: the page has and computes all.
        max_size: the largest size of the page in bytes; by default 5 MB, and with the model 32 MB.
        title: the title; by default the text, or the name of the recording's file.
        effects: what mattered to a metric: a result of `regard.effect` for the same model and text, or several. The
            page opens with them.
        progress: wraps the iteration over the paths of the attentions, such as a progress bar.

    Returns:
        The page, its path and size, and what is in it.

    Raises:
        InputError: an empty or too long text; no such model, file, layer, head or word; a path that cannot be written;
            nothing to show; a size that is too small for any page; a model that no page can carry.
    """
    others = [compare] if isinstance(compare, str) else list(compare or ())
    listed_effects = as_list(effects)
    if with_model:
        options = {"target": target, "max_new_tokens": max_new_tokens, "layer": layer, "head": head, "image": image}
        _refuse_with_model(text, others, effects=listed_effects or None, **options)
    if out is not None:
        ensure_writable(out)
    page_image = None if image is None else PageImage.load(image)
    quantized = quantize_model(_pretrained(model)) if with_model else None
    source = attention_source(
        text,
        model if quantized is None else quantized.dequantize(),
        compare=others if quantized is None or _share_words([str(text), *others], quantized.full) else (),
        target=target,
        max_new_tokens=max_new_tokens,
        layers=[layer] if isinstance(layer, int) else layer,
        heads=[head] if isinstance(head, int) or _is_pair(head) else head,  # type: ignore[list-item]
        token=token,
    )
    if image is not None and source.model:
        raise InputError("a text is shown, and image belongs to a recording: leave it out", "image")
    try:
        shown: dict[str, Any] = {
            "title": title or source.title or None,
            "model": source.model,
            "context": source.context,
            "initial": source.initial,
            "progress": progress,
        }
        if quantized is not None:
            limit = MODEL_PAGE_MAX_SIZE if max_size is None else max_size
            page = build_model_page(source.recording, quantized, [str(text), *others], max_size=limit, **shown)
        else:
            page = build_page(
                source.recording,
                max_size=DEFAULT_MAX_SIZE if max_size is None else max_size,
                heads=source.heads,
                image=page_image,
                effects=listed_effects,
                view=EFFECT_VIEW if listed_effects else None,
                **shown,
            )
    except InputError:
        raise
    except ValueError as error:  # there is nothing to show, or the effects are those of another model
        raise InputError(str(error)) from error
    if out is not None:
        write_text(page.text, out)
    picture = draw_picture(source.recording, page.facts)
    return AttentionPage(None if out is None else Path(out), page.size, _facts(source, page), page.text, picture)


def _pretrained(model: str | Path | Pretrained | None) -> Pretrained:
    """The model that a page is to carry."""
    return model if isinstance(model, Pretrained) else load(model or DEFAULT_MODEL)


def _share_words(texts: Sequence[str], model: Pretrained) -> bool:
    """Whether texts have a word in common, which the view Context needs; a page with its model does without."""
    words = [Words.of(text, model).first_positions() for text in texts]
    return len(words) > 1 and bool(words[0].keys() & words[1].keys())


def _refuse_with_model(text: object, others: Sequence[str], **options: object) -> None:
    """Refuse what a page with its model does not take.

    Raises:
        InputError: a recording; several other texts; an option that selects or adds what this page computes itself.
    """
    if len(others) > 1:
        raise InputError(
            f"a page with its model compares two texts, and compare has {len(others)}: give one", "compare"
        )
    if isinstance(text, Recording):
        raise InputError("with_model puts the model into the page of a text, and this is a recording: give a text")
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"with_model: the page has every layer and head of an encoder, and computes effects itself; leave "
                f"{name} out",
                name,
            )


def _is_pair(head: object) -> bool:
    """Whether this is one (layer, head), and no list of heads."""
    return isinstance(head, tuple) and len(head) == 2 and all(isinstance(each, int) for each in head)


def _facts(source: AttentionSource, page: RenderedPage) -> dict[str, Any]:
    """The facts of a page that are small: no weights, queries or keys."""
    facts, initial = page.facts, page.facts["initial"]
    first = facts["attentions"][initial["attention"]]
    return {
        "title": facts["title"],
        "model": facts["model"],
        "initial": {
            "path": first["path"],
            "layer": first["layer"],
            "head": first["heads"][initial["head"]]["number"],
            "query": initial["query"],
            "token": facts["texts"][first["query_text"]]["tokens"][initial["query"]],
        },
        "compared_words": [word["word"] for word in (source.context or {"words": []})["words"]],
        "attentions": [
            {name: attention[name] for name in ("path", "kind", "layer", "queries", "keys", "mask", "verified")}
            | {
                "error": attention["max_error"],
                "max_weight_error": attention["max_weight_error"],
                "heads": [head["number"] for head in attention["heads"] if head["payload"] is not None],
                "pictures": [head["number"] for head in attention["heads"] if head["payload"] is None],
            }
            for attention in facts["attentions"]
        ],
        "omitted": facts["omitted"],
        "notes": facts["notes"],
    }
