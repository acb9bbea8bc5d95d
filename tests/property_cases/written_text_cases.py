"""Methods that write a text on: which logits they read, what they draw from, and what each of their steps is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from property_cases import WIDTH, Case, drawn
from property_cases.generation_cases import Writes
from property_cases.masked_label_cases import WORDS, of_words

PLACES = drawn(24, WIDTH, seed=47)


class Draws(Writes):
    """It reads the whole text in each step, and draws."""

    max_context = 24

    def generate(self, ids: Tensor, max_new_tokens: int, temperature: float = 1.0) -> Tensor:
        for _ in range(max_new_tokens):
            logits = self.behind(self(self.seen(ids))[0])
            likely = self.kept(self.warmed(logits, temperature))
            ids = self.joined(ids, torch.multinomial(self.shares(likely), 1))
        return ids

    def seen(self, ids: Tensor) -> Tensor:
        return ids

    def behind(self, logits: Tensor) -> Tensor:
        return logits[:, -1]

    def warmed(self, logits: Tensor, temperature: float) -> Tensor:
        return logits / temperature

    def kept(self, logits: Tensor) -> Tensor:
        least = logits.topk(5, -1).values[:, -1:]
        return logits.masked_fill(logits < least, -torch.inf)

    def shares(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def joined(self, ids: Tensor, new: Tensor) -> Tensor:
        return torch.cat([ids, new], 1)


class ReadsTheFirst(Draws):
    def behind(self, logits: Tensor) -> Tensor:
        return logits[:, 0]


class ReadsTheLastButOne(Draws):
    def behind(self, logits: Tensor) -> Tensor:
        return logits[:, -2]


class Multiplies(Draws):
    def warmed(self, logits: Tensor, temperature: float) -> Tensor:
        return logits * temperature


class DropsTheBest(Draws):
    def kept(self, logits: Tensor) -> Tensor:
        best = logits.topk(5, -1).values[:, -1:]
        return logits.masked_fill(logits >= best, -torch.inf)


class OfTheBestFew(Draws):
    """It draws from all, unless it is told from how many."""

    def generate(self, ids: Tensor, max_new_tokens: int, top_k: int | None = None) -> Tensor:
        for _ in range(max_new_tokens):
            logits = self(ids)[0][:, -1]
            if top_k is not None:
                logits = logits.masked_fill(self.are_left_out(logits, logits.topk(top_k).values[:, -1:]), -torch.inf)
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
        return ids

    def are_left_out(self, logits: Tensor, least: Tensor) -> Tensor:
        return logits < least


class OfAllButTheBestFew(OfTheBestFew):
    def are_left_out(self, logits: Tensor, least: Tensor) -> Tensor:
        return logits > least


class OfOneTooMany(OfTheBestFew):
    def are_left_out(self, logits: Tensor, least: Tensor) -> Tensor:
        ranks = logits.argsort(-1, descending=True).argsort(-1)
        return ranks > (logits >= least).sum(-1, keepdim=True)


class AlwaysMayEnd(OfTheBestFew):
    """It may write its last word whatever is likely."""

    def are_left_out(self, logits: Tensor, least: Tensor) -> Tensor:
        return (logits < least).index_fill(-1, torch.tensor([0]), False)


class OfTheLikeliest(Draws):
    """It draws from those that come before the sum of the shares goes beyond what it is told, in their order."""

    def generate(self, ids: Tensor, max_new_tokens: int, top_p: float = 1.0) -> Tensor:
        for _ in range(max_new_tokens):
            shares, order = self(ids)[0][:, -1].softmax(-1).sort(-1, descending=True)
            shares = shares.masked_fill(self.before(shares) > top_p, 0.0)
            drawn = torch.multinomial(shares / shares.sum(-1, keepdim=True), 1)
            ids = torch.cat([ids, order.gather(-1, drawn)], 1)
        return ids

    def before(self, shares: Tensor) -> Tensor:
        return shares.cumsum(-1) - shares


class WithoutTheLikeliest(OfTheLikeliest):
    def before(self, shares: Tensor) -> Tensor:
        return shares.cumsum(-1)


class OverTheBatch(Draws):
    def kept(self, logits: Tensor) -> Tensor:
        return logits

    def shares(self, logits: Tensor) -> Tensor:
        return logits.softmax(0)


class InFront(Draws):
    def joined(self, ids: Tensor, new: Tensor) -> Tensor:
        return torch.cat([new, ids], 1)


class OfAContext(Draws):
    """It reads no more tokens than it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.block_size = 6

    def seen(self, ids: Tensor) -> Tensor:
        return ids[:, -self.block_size :]


class OfItsBeginning(OfAContext):
    def seen(self, ids: Tensor) -> Tensor:
        return ids[:, : self.block_size]


class OfItsBeginningByAShortName(Draws):
    def __init__(self) -> None:
        super().__init__()
        self.ctx = 6

    def seen(self, ids: Tensor) -> Tensor:
        return ids[:, : self.ctx]


class OfItsGrammar(Draws):
    """Every other id may never be written: that is no mistake of its loop."""

    def kept(self, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.arange(0, WORDS, 2), -torch.inf)


class OfWords(nn.Module):
    """What a model of one layer has, for ids."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.double()


class Ends(OfWords):
    """It returns logits alone; a text that has ended is filled with the id 0."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(x + PLACES[: ids.shape[1]]).chunk(3, -1)
        later = torch.ones(q.shape[1], k.shape[1]).triu(1) == 1
        read = (q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.head(x + read)

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        is_done = torch.zeros(len(ids), dtype=torch.bool)
        for _ in range(max_new_tokens):
            new = self.filled(self.chosen(self(ids)[:, -1]), is_done)
            is_done = is_done | (new == 1)
            ids = torch.cat([ids, new[:, None]], 1)
        return ids

    def chosen(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def filled(self, new: Tensor, is_done: Tensor) -> Tensor:
        return new.masked_fill(is_done, 0)


class FillsWhatGoesOn(Ends):
    def filled(self, new: Tensor, is_done: Tensor) -> Tensor:
        return new.masked_fill(~is_done, 0)


class FillsWhatGoesOnWithWhere(Ends):
    def filled(self, new: Tensor, is_done: Tensor) -> Tensor:
        return torch.where(is_done, new, torch.zeros_like(new))


class TheLeast(Ends):
    def chosen(self, logits: Tensor) -> Tensor:
        return logits.argmin(-1)


class TheFirstOfTheSorted(Ends):
    def chosen(self, logits: Tensor) -> Tensor:
        return logits.argsort(-1)[:, 0]


class OfTheLastAlone(OfAContext):
    """Its call returns the logits of the last token alone."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)[0][:, -1:]

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self(self.seen(ids))[:, -1].argmax(-1, keepdim=True)], 1)
        return ids


class OfTheLastAloneOfItsBeginning(OfTheLastAlone):
    def seen(self, ids: Tensor) -> Tensor:
        return ids[:, : self.block_size]


class Layers(OfWords):
    """It writes by its layers, one after the other, and never calls itself."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(ids, 0, None)[0]

    def read(self, ids: Tensor, start: int, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.words(ids)
        q, k, v = self.qkv(x + PLACES[start : start + ids.shape[1]]).chunk(3, -1)
        both = torch.cat([k, v], -1) if cache is None else torch.cat([cache, torch.cat([k, v], -1)], 1)
        k, v = both.chunk(2, -1)
        later = torch.ones(q.shape[1], k.shape[1]).triu(1 + k.shape[1] - q.shape[1]) == 1
        read = (q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.head(x + read), both

    def generate(self, prompt_ids: Tensor, max_new_tokens: int) -> Tensor:
        text = prompt_ids
        logits, cache = self.read(text, 0, None)
        for number in range(max_new_tokens):
            text = torch.cat([text, logits[:, -1].argmax(-1, keepdim=True)], 1)
            logits, cache = self.read(text[:, -1:], self.place(text, number), cache)
        return text

    def place(self, text: Tensor, number: int) -> int:
        return text.shape[1] - 1


class LayersOneTooFar(Layers):
    def place(self, text: Tensor, number: int) -> int:
        return text.shape[1]


class LayersByNumber(Layers):
    def place(self, text: Tensor, number: int) -> int:
        return number + 1


class AllAgainWithACache(Writes):
    """What is in the cache already is read once more."""

    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        cache = None
        for _ in range(max_new_tokens):
            logits, cache = self(ids, 0, self.given(cache))
            ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return ids

    def given(self, cache: Tensor | None) -> Tensor | None:
        return cache


class AllAgainWithoutOne(AllAgainWithACache):
    def given(self, cache: Tensor | None) -> Tensor | None:
        return None


CASES = [
    *(
        Case("written-from-its-logits", wrong, Draws, of_words, has_line=False)
        for wrong in (ReadsTheFirst, ReadsTheLastButOne, Multiplies, DropsTheBest, OverTheBatch, InFront)
    ),
    Case("written-from-its-logits", OfItsBeginning, OfAContext, of_words, has_line=False),
    Case("written-from-its-logits", OfItsBeginningByAShortName, OfAContext, of_words, has_line=False),
    Case("written-from-its-logits", OfAllButTheBestFew, OfTheBestFew, of_words, has_line=False),
    Case("written-from-its-logits", OfOneTooMany, OfTheBestFew, of_words, has_line=False),
    Case("written-from-its-logits", OfOneTooMany, AlwaysMayEnd, of_words, has_line=False),
    Case("written-from-its-logits", WithoutTheLikeliest, OfTheLikeliest, of_words, has_line=False),
    Case("written-from-its-logits", ReadsTheFirst, OfItsGrammar, of_words, has_line=False),
    *(
        Case("written-from-its-logits", wrong, Ends, of_words, has_line=False)
        for wrong in (FillsWhatGoesOn, FillsWhatGoesOnWithWhere, TheLeast, TheFirstOfTheSorted)
    ),
    Case("written-from-its-logits", OfTheLastAloneOfItsBeginning, OfTheLastAlone, of_words, has_line=False),
    Case("cache-equals-whole", LayersOneTooFar, Layers, of_words, has_line=False),
    Case("cache-equals-whole", LayersByNumber, Layers, of_words, has_line=False),
    Case("cache-equals-whole", AllAgainWithACache, AllAgainWithoutOne, of_words, has_line=False),
]
