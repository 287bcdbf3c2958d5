"""Short reviews, their tokens and a small BERT: for finetune_text.toml."""

import itertools

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification

SUBJECTS = ("the book", "this film", "our hotel", "the food", "that concert", "the hike", "my new phone", "the lecture")
VERBS = ("was", "seemed", "turned out", "felt")
ADVERBS = ("", "really", "quite", "not", "hardly")
GOOD = ("wonderful", "lovely", "clever", "fresh", "great")
BAD = ("awful", "dull", "broken", "stale", "sad")
NEGATIONS = ("not", "hardly")


class Reviews(Dataset):
    """All sentences of the words above; the label is 1 for a good review. A sample is a mapping, the input format of BERT."""

    classes = ("bad", "good")

    def __init__(self) -> None:
        parts = itertools.product(SUBJECTS, VERBS, ADVERBS, GOOD + BAD)
        self.texts = [" ".join(filter(None, part)) for part in parts]
        self.targets = [
            (text.split()[-1] in GOOD) != any(word in NEGATIONS for word in text.split()) for text in self.texts
        ]
        words = sorted({word for text in self.texts for word in text.split()})
        self.numbers = {word: number for number, word in enumerate(words, start=1)}  # 0 pads

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        tokens = [self.numbers[word] for word in self.texts[row].split()]
        padded = torch.tensor(tokens + [0] * (8 - len(tokens)))
        return {
            "input_ids": padded,
            "attention_mask": (padded > 0).long(),
            "labels": torch.tensor(int(self.targets[row])),
        }


def reviews() -> Reviews:
    """Return the reviews."""
    return Reviews()


def bert(*, outputs: int) -> BertForSequenceClassification:
    """Return a BERT of two layers, created from a configuration."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=40, num_labels=outputs, **sizes))
