"""What a property says of an attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.check.location import CodeLocation
from regard.check.roles.table import AttentionTable

__all__ = ["Evidence", "Finding"]


@dataclass(frozen=True)
class Finding:
    """A property that an attention violates or that holds of it, a design that it follows, or what it has not."""

    kind: Literal["violation", "design", "holds", "absent", "open", "note"]
    """"absent": it has no such step; "open": the step could not be judged; "note": anything else to be said."""
    property: str
    """Its name, as "softmax-axis"."""
    step: str
    """The step of the definition, as in the known mistakes."""
    message: str
    """One sentence with the measured numbers."""
    location: CodeLocation | None = None
    module: str = ""
    """The path of the module inside of what was handed over."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """One attention in three runs of the same operations."""

    base: AttentionTable
    fresh: AttentionTable
    """The same with all tokens drawn anew."""
    equal: AttentionTable | None
    """The same with the first token's content in every token of each sample."""
    is_masked: bool
    """Whether the call was given a mask: it may differ among samples and heads."""
    is_optional: dict[str, bool]
    """By role, whether the argument may be None: the code may take another in its place."""
    says_causal: bool
    """Whether its name or its documentation speaks of a causal mask."""
    promises_causal: bool
    """Whether its documentation says so without a condition, and nothing is given that could change it."""
    roles: dict[str, str]
    """By stream: "x", "context", "q", "k", "v" or "ids"."""
    num_tokens: int = 0
    """That queries and keys are of; 0 where these are not as many."""
    num_keys: int = 0
    """How many tokens were handed over as keys; 0 where there is no argument for these."""
    hides_on_demand: bool = False
    """Whether something besides its sequences is handed over, or an argument or a setting may hide later keys."""
    names_causal: bool = False
    """The same as `promises_causal` of its name."""
    documents_causal: bool = False
    """The same of the first words of a sentence in its documentation, whatever the others speak of."""
    documents_causal_beside_memory: bool = False
    """The same of a sentence that may speak of a memory, which all tokens see."""
    set_causal: str = ""
    """The setting of its module that says that it is causal, as in "causal=True"; empty where none does."""
    comments_causal: bool = False
    """The same of a comment in it: that may be of a part of what it does."""
    code: str = ""
    """The text of what is judged, and of the functions and classes of its file that it uses."""
    numbers: frozenset[float] = frozenset()
    """That are written in it, or are told to it."""

    @property
    def is_documented_causal(self) -> bool:
        """Whether its documentation says that it is causal, without a condition or at the beginning of a sentence."""
        return self.promises_causal or self.documents_causal
