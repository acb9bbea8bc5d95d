"""Messages as a prompt: a model's chat template, whose special tokens no message can write.

A template writes special tokens around the messages, and the tokenizer finds them in the text. Where a message holds
the letters of such a token, for example ``<|im_end|>``, they must stay letters, or whoever wrote the message could end
it and write the next one. So while the template is rendered, private characters of Unicode stand for them. Then other
private characters take the place of the special tokens that the template itself wrote, the letters return, and a copy
of the tokenizer that finds nothing but those characters makes the ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tokenizers import AddedToken, Tokenizer

from regard.errors import InputError, require_utf8, short_repr
from regard.pretrained.checkpoint import read_json_object, read_text
from regard.pretrained.hub import ModelFiles
from regard.pretrained.save import CHAT_TEMPLATE_FILE, SPECIAL_TOKENS_FILE, TOKENIZER_CONFIG_FILE

Message = Mapping[str, str]
"""``{"role": ..., "content": ...}``."""

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_FORM = '{"role": ..., "content": ...}'
TOKEN_VARIABLES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The names by which a template writes special tokens."""

MARKERS, PLACEHOLDERS = range(0x100000, 0x10FFFE), range(0xF0000, 0xFFFFE)
"""Unicode's two planes for private use: what stands for letters in a message, and for the template's own tokens."""


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a checkpoint."""

    text: str
    """In Jinja's language."""
    special_tokens: Mapping[str, str]
    """``bos_token`` and so on, as far as the checkpoint names them."""


def read_chat_template(files: ModelFiles | None, texts: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template of a checkpoint: chat_template.jinja, else that of tokenizer_config.json; None without one.

    Args:
        files: the checkpoint's files; None if there are none.
        texts: JSON files that are not on the disk, by their names.

    Raises:
        InputError: a file that cannot be read; several templates and none of them ``default``; the Hub could not be
            reached.
    """

    def config_of(file: str) -> dict[str, Any]:
        if file in texts:
            return dict(json.loads(texts[file]))
        path = None if files is None else files.find(file)
        return {} if path is None else read_json_object(path)

    config = config_of(TOKENIZER_CONFIG_FILE)
    path = None if files is None else files.find(CHAT_TEMPLATE_FILE)
    template = _configured_template(config.get("chat_template")) if path is None else read_text(path)
    if template is None:
        return None
    if "added_tokens_decoder" not in config:  # older checkpoints name their special tokens in a file of their own
        config |= config_of(SPECIAL_TOKENS_FILE)
    return ChatTemplate(template, _special_tokens(config))


def _configured_template(value: Any) -> str | None:
    """The chat template that tokenizer_config.json holds: a text, or of several with names the default."""
    if value is None or isinstance(value, str):
        return value
    with suppress(TypeError, KeyError):
        named = {each["name"]: each["template"] for each in value}
        if isinstance(named.get("default"), str):
            return str(named["default"])
        if named and "default" not in named:
            names = ", ".join(map(repr, named))
            raise InputError(f"chat_template of {TOKENIZER_CONFIG_FILE} has {names}, and no 'default', which is read")
    raise InputError(
        f"chat_template of {TOKENIZER_CONFIG_FILE} is {short_repr(str(value))}; it must be a text, or a list of texts "
        "with their names"
    )


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for variable in TOKEN_VARIABLES:
        value = config.get(variable)
        token = value.get("content") if isinstance(value, dict) else value
        if token is not None and not isinstance(token, str):
            raise InputError(f"{variable} of {TOKENIZER_CONFIG_FILE} is {short_repr(str(value))}; it must be a text")
        tokens |= {variable: token} if token is not None else {}
    return tokens


def validate_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as plain dictionaries of texts.

    Raises:
        InputError: no message; a role that is none of `ROLES`; a key that is missing, or one that regard does not hand
            over; a content that is no valid text.
        TypeError: anything else in the place of a list, a message or a content.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of {MESSAGE_FORM}; got {short_repr(repr(messages))}")
    if not messages:
        raise InputError("there is no message: a chat has at least one")
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"message {n} must be {MESSAGE_FORM}; got {short_repr(repr(message))}")
        missing = [key for key in ("role", "content") if key not in message]
        unknown = [key for key in message if key not in ("role", "content")]
        if missing or unknown:
            what = f"has no {missing[0]!r}" if missing else f"has {unknown[0]!r}"
            raise InputError(f"message {n} {what}; regard hands role and content to the chat template, and no more")
        if message["role"] not in ROLES:
            raise InputError(f"message {n} has the role {message['role']!r}; the roles are {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            raise TypeError(f"the content of message {n} must be a text; got {short_repr(repr(message['content']))}")
        require_utf8(message["content"])
    # A template must not meet a subclass of str, whose methods could do anything.
    return [{key: str.__str__(message[key]) for key in ("role", "content")} for message in messages]


class ChatEncoder:
    """Makes token ids of messages.

    Args:
        chat_template: of the model.
        tokenizer: of the model.
        name: the model's name, for errors.

    Raises:
        InputError: the template is not valid.
    """

    def __init__(self, chat_template: ChatTemplate, tokenizer: Tokenizer, name: str) -> None:
        from regard.pretrained.chat_sandbox import literals, render  # imports Jinja, which most models never need

        self._chat_template, self._tokenizer, self._name, self._render = chat_template, tokenizer, name, render
        added = tokenizer.get_added_tokens_decoder().values()
        written = literals(chat_template.text, name)
        self._special = {token.content for token in added if token.special}
        # Some tokenizers do not call the tokens that begin a turn special; the template shows which they are.
        self._control = self._special | {t.content for t in added if t.content in written and not t.content.isspace()}
        self._pattern = _longest_match(added)
        self._literal_tokenizer: LiteralTokenizer | None = None

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """The token ids of messages, those of transformers' ``apply_chat_template``.

        Args:
            messages: at least one.
            add_generation_prompt: whether the beginning of an answer follows the messages.

        Raises:
            InputError: as `validate_messages`; a template that fails, refuses the messages or leaves one out; a special
                token whose letters the tokenizer cannot read as letters.
            TypeError: as `validate_messages`.
        """
        chat = validate_messages(messages)
        contents = "\0".join(message["content"] for message in chat)
        found = [token for token in self._control if token in contents]
        markers = dict(zip(found, _private(MARKERS, len(found), contents + self._chat_template.text), strict=True))
        marked = [{**message, "content": self._mark(message, markers)} for message in chat]
        rendered = self._rendered(marked, add_generation_prompt)
        self._refuse_omission(marked, rendered, add_generation_prompt)
        if self._literal_tokenizer is None or self._literal_tokenizer.is_confused_by(rendered):
            self._literal_tokenizer = LiteralTokenizer(self._tokenizer, self._control, rendered)
        tokenizer = self._literal_tokenizer
        for token, marker in markers.items():
            if marker in rendered and self._tokenizer.token_to_id(token) in tokenizer.encode(token, self._name):
                raise InputError(
                    f"a message holds {token!r}, of which the tokenizer of {self._name} makes a special token"
                )
        # What the pattern matches here is the template's, for the letters of the messages are markers.
        text = self._pattern.sub(lambda match: tokenizer.placeholders.get(match[0], match[0]), rendered)
        return tokenizer.encode(text.translate({ord(m): token for token, m in markers.items()}), self._name)

    def _mark(self, message: Message, markers: Mapping[str, str]) -> str:
        """The content of a message, with markers for the letters of control tokens."""
        # A model's answer has tokens such as <think> in it, which templates look for; special ones it cannot have.
        marked = self._special if message["role"] == "assistant" else self._control
        return self._pattern.sub(lambda m: markers[m[0]] if m[0] in marked else m[0], message["content"])

    def _rendered(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        variables: dict[str, Any] = {"messages": messages, "tools": None, "documents": None}
        variables |= {"add_generation_prompt": add_generation_prompt, **self._chat_template.special_tokens}
        return self._render(self._chat_template.text, variables, self._name)

    def _refuse_omission(self, messages: list[dict[str, str]], rendered: str, add_generation_prompt: bool) -> None:
        """Refuse a message that the template passes over: some know no system, and do not say so."""
        omitted = []
        for n, message in enumerate(messages):
            if message["content"].strip() in rendered:
                continue
            changed = [*messages[:n], {**message, "content": "x"}, *messages[n + 1 :]]
            with suppress(InputError):  # a template that refuses the other text has read it
                if self._rendered(changed, add_generation_prompt) == rendered:
                    omitted.append(f"message {n} of the role {message['role']!r}")
        if omitted:
            raise InputError(f"the chat template of {self._name} leaves out {', '.join(omitted)}")


class LiteralTokenizer:
    """A tokenizer that reads the letters of control tokens as letters, and placeholders as control tokens.

    Args:
        tokenizer: whose model it shares.
        control: the control tokens.
        text: a text in which no placeholder may occur.
    """

    def __init__(self, tokenizer: Tokenizer, control: Iterable[str], text: str) -> None:
        control = sorted(control)
        self.placeholders = dict(zip(control, _private(PLACEHOLDERS, len(control), text), strict=True))
        """A private character for each control token."""
        self._characters = frozenset(self.placeholders.values())
        added = {
            self.placeholders.get(token.content, token.content): (id_, token)
            for id_, token in sorted(tokenizer.get_added_tokens_decoder().items())
        }
        # No copy of the vocabulary: what a text is cut into is the same, but for the tokens that are found before.
        self._tokenizer = Tokenizer(tokenizer.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(tokenizer, part) is not None:
                setattr(self._tokenizer, part, getattr(tokenizer, part))
        self._tokenizer.add_tokens([_renamed(token, content) for content, (_, token) in added.items()])
        self._ids = {self._tokenizer.token_to_id(content): id_ for content, (id_, _) in added.items()}

    def is_confused_by(self, text: str) -> bool:
        """Whether a text has placeholders in it."""
        return not self._characters.isdisjoint(text)

    def encode(self, text: str, name: str) -> list[int]:
        """The ids of a text, without tokens before and behind it: those are the template's.

        Raises:
            InputError: the tokenizer cannot read the text.
        """
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(f"the tokenizer of {name} cannot read {short_repr(text)}: {error}") from error
        return [self._ids.get(token, token) for token in ids]


def _renamed(token: AddedToken, content: str) -> AddedToken:
    options = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(content, special=False, **options)


def _longest_match(tokens: Iterable[AddedToken]) -> re.Pattern[str]:
    """A pattern that finds added tokens where the tokenizer does: the first in the text, and there the longest.

    But the tokenizer looks for those that stand in the normalized text only where the others are not.
    """
    patterns = [
        rf"(?<!\w){re.escape(token.content)}(?!\w)" if token.single_word else re.escape(token.content)
        for token in sorted(tokens, key=lambda token: (token.normalized, -len(token.content)))
    ]
    return re.compile("|".join(patterns) or "(?!)")


def _private(plane: range, count: int, text: str) -> list[str]:
    """Private characters that are not in a text."""
    used = set(map(ord, text)).intersection(plane)
    found = [chr(code) for code in islice((code for code in plane if code not in used), count)]
    if len(found) < count:
        raise InputError(
            f"the messages hold {len(used):,} of Unicode's private characters; regard needs {count} of them"
        )
    return found
