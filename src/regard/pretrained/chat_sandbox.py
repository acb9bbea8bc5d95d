"""Renders chat templates as transformers does: by Jinja in a sandbox, for a template comes with a model, from anybody.

The environment is that of ``apply_chat_template`` in transformers 5: blocks are trimmed, loops have ``break`` and
``continue``, ``tojson`` escapes no HTML, ``raise_exception`` and ``strftime_now`` are there, ``{% generation %}`` marks
the text of the model and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from regard.errors import InputError, short_repr


def render(template: str, variables: Mapping[str, Any], name: str) -> str:
    """The text that a chat template makes of its variables.

    Args:
        template: in Jinja's language.
        variables: texts, numbers, lists and dictionaries; nothing with methods that a template should not call.
        name: the model's name, for errors.

    Raises:
        InputError: the template is not valid, refuses the messages, or fails; the message names what it raised.
    """
    with _errors_of_template(name):
        return _compile(template).render(**variables)


def literals(template: str, name: str) -> str:
    """What a chat template can write by itself: its text and the strings of its code, a null character between two.

    Raises:
        InputError: the template is not valid.
    """
    with _errors_of_template(name):
        parsed = _environment().parse(template)
    texts = [node.data for node in parsed.find_all(nodes.TemplateData)]
    strings = [node.value for node in parsed.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join([*texts, *strings])


class _RefusalError(TemplateError):
    """What ``raise_exception`` of a template raises."""


@contextmanager
def _errors_of_template(name: str) -> Iterator[None]:
    try:
        yield
    except _RefusalError as error:
        raise InputError(f"the chat template of {name} refuses these messages: {_one_line(error)}") from error
    except TemplateSyntaxError as error:
        message = f"the chat template of {name} is no valid Jinja: line {error.lineno}: {_one_line(error)}"
        raise InputError(message) from error
    except Exception as error:  # a template runs code, which can raise anything
        raise InputError(f"the chat template of {name} raised {type(error).__name__}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return short_repr(str(error).strip(), max_length=300)


@lru_cache(maxsize=8)
def _compile(template: str) -> Template:
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
        "dict": _DictFactory(),
        "namespace": _PublicNamespace,
    }
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``, where training counts the loss; the text stays as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _DictFactory:
    """``dict`` without the attributes of Python's type."""

    def __call__(self, *pairs: Any, **values: Any) -> dict[Any, Any]:
        return dict(*pairs, **values)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _PublicNamespace(Namespace):
    """A namespace without the names of Python's protocols: ``__html__`` is called outside the sandbox."""

    def __init__(*arguments: Any, **values: Any) -> None:  # no `self`: a template may give a value that name
        for name in dict(*arguments[1:], **values):
            _refuse_private(name)
        Namespace.__init__(*arguments, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace has no {name!r}: its names begin with a letter")
