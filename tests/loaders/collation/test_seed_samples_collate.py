"""The seed documents' samples on collation, word for word except for import paths."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tokenloom.loaders import (
    CollatorRegistry,
    LanguageModelingDataCollator,
    VisionDataCollator,
    create_causal_lm_collate,
    create_collate_fn,
    create_seq2seq_collate,
)

AUTO_SELECTION = """
from tokenloom.loaders import CollatorRegistry
from tokenloom.loaders import TaskSpec

registry = CollatorRegistry.get_instance()

# Vision task - automatically selects VisionDataCollator
task_spec = TaskSpec.vision_tiny()
collator = registry.get_collator(task_spec=task_spec)
vision = collator

# Text task - automatically selects LanguageModelingDataCollator
task_spec = TaskSpec.lm_tiny()
collator = registry.get_collator(task_spec=task_spec, tokenizer=tokenizer)
"""

EXPLICIT = """
# Use specific collator by name
collator = registry.get_collator(
    collator_name='vision',
    normalize=True,
    mean=[0.5, 0.5, 0.5],  # CIFAR-10 normalization
    std=[0.5, 0.5, 0.5]
)
"""

AUDIO = '''
from tokenloom.loaders import CollatorRegistry

registry = CollatorRegistry.get_instance()

# Register custom audio collator
@registry.register('audio', modality='audio', description='Audio collator with spectrogram')
def create_audio_collator(task_spec=None, sample_rate=16000, n_fft=512):
    """Create audio collator for speech recognition."""
    class AudioCollator:
        def __init__(self, sample_rate, n_fft):
            self.sample_rate = sample_rate
            self.n_fft = n_fft

        def __call__(self, batch):
            import torch
            import torchaudio.transforms as T

            # Stack audio waveforms
            waveforms = torch.stack([item['waveform'] for item in batch])

            # Convert to spectrogram
            spectrogram_transform = T.Spectrogram(n_fft=self.n_fft)
            spectrograms = spectrogram_transform(waveforms)

            # Stack labels
            labels = torch.tensor([item['label'] for item in batch])

            return {'spectrograms': spectrograms, 'labels': labels}

    return AudioCollator(sample_rate, n_fft)

# Use custom collator
audio_task_spec = TaskSpec(
    name="speech_recognition",
    modality="audio",
    task_type="classification",
    # ... other fields
)
collator = registry.get_collator(task_spec=audio_task_spec, sample_rate=22050)
'''

MULTIMODAL = '''
@registry.register('multimodal', modality='vision', description='Vision-language collator')
def create_multimodal_collator(task_spec=None, tokenizer=None, normalize=True):
    """Create collator for vision-language tasks (e.g., image captioning)."""
    from tokenloom.loaders import VisionDataCollator, LanguageModelingDataCollator

    vision_collator = VisionDataCollator(normalize=normalize)
    text_collator = LanguageModelingDataCollator(tokenizer=tokenizer)

    def multimodal_collate_fn(batch):
        # Separate vision and text components
        vision_batch = [{'pixel_values': item['pixel_values']} for item in batch]
        text_batch = [{'input_ids': item['input_ids']} for item in batch]

        # Apply collators
        vision_out = vision_collator(vision_batch)
        text_out = text_collator(text_batch)

        # Merge outputs
        return {
            'pixel_values': vision_out['pixel_values'],
            'input_ids': text_out['input_ids'],
            'attention_mask': text_out['attention_mask'],
            'labels': text_out['labels']
        }

    return multimodal_collate_fn
'''


class Spectrogram:
    """Same as torchaudio's by default: the power of a Hann-windowed short-time Fourier transform."""

    def __init__(self, n_fft: int):
        self.n_fft = n_fft

    def __call__(self, waveforms: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(self.n_fft)
        return torch.stft(waveforms, self.n_fft, self.n_fft // 2, window=window, return_complex=True).abs() ** 2


@pytest.fixture
def names(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names that the samples use, with a new shared registry."""
    from tokenloom.loaders import TaskSpec

    torchaudio, transforms = ModuleType("torchaudio"), ModuleType("torchaudio.transforms")
    vars(transforms)["Spectrogram"] = Spectrogram
    vars(torchaudio)["transforms"] = transforms
    monkeypatch.setitem(sys.modules, "torchaudio", torchaudio)
    monkeypatch.setitem(sys.modules, "torchaudio.transforms", transforms)
    CollatorRegistry.get_instance.cache_clear()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    yield {"tokenizer": tokenizer, "registry": CollatorRegistry.get_instance(), "TaskSpec": TaskSpec}
    CollatorRegistry.get_instance.cache_clear()


def test_auto_selection(names: dict[str, Any]) -> None:
    exec(AUTO_SELECTION, names)
    assert isinstance(names["vision"], VisionDataCollator)
    assert isinstance(names["collator"], LanguageModelingDataCollator)


def test_explicit_selection(names: dict[str, Any]) -> None:
    exec(EXPLICIT, names)
    batch = names["collator"]([{"pixel_values": torch.ones(3, 2, 2), "labels": 1}])
    assert torch.equal(batch["pixel_values"], torch.ones(1, 3, 2, 2))


def test_an_audio_collator(names: dict[str, Any]) -> None:
    exec(AUDIO, names)
    collator = names["collator"]
    assert (collator.sample_rate, collator.n_fft) == (22050, 512)
    batch = collator(
        [{"waveform": torch.sin(torch.arange(2048) * step), "label": n} for n, step in enumerate((0.1, 1.0))]
    )
    assert batch["spectrograms"].shape == (2, 257, 9)
    peaks = batch["spectrograms"].mean(dim=2).argmax(dim=1)
    assert peaks.tolist() == [round(512 * step / (2 * torch.pi)) for step in (0.1, 1.0)]
    assert batch["labels"].tolist() == [0, 1]


def test_a_multimodal_collator(names: dict[str, Any]) -> None:
    exec(MULTIMODAL, names)
    registry, tokenizer = names["registry"], names["tokenizer"]
    assert isinstance(registry.get_collator(task_spec=names["TaskSpec"].vision_tiny()), VisionDataCollator)
    collator = registry.get_collator(collator_name="multimodal", tokenizer=tokenizer, normalize=False)
    batch = collator([{"pixel_values": torch.ones(3, 4, 4), "input_ids": ids} for ids in ([100, 101], [102])])
    assert torch.equal(batch["pixel_values"], torch.ones(2, 3, 4, 4))
    assert batch["input_ids"].tolist() == [[100, 101], [102, tokenizer.pad_token_id]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"].tolist() == [[100, 101], [102, -100]]


def test_the_arguments_of_create_collate_fn() -> None:
    collate = create_collate_fn(
        pad_token_id=0, label_pad_token_id=-100, padding_side="left", max_length=3, return_tensors=False
    )
    batch = collate([{"input_ids": [5, 6], "attention_mask": [1, 0], "labels": [5, 6]}])
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[0, 5, 6]],
        "attention_mask": [[0, 1, 0]],
        "labels": [[-100, 5, -100]],
    }


def test_specialized_collate_functions() -> None:
    row = {"input_ids": [5, 6, 7], "labels": [5, 6, 7]}
    assert create_causal_lm_collate(pad_token_id=0)([row])["labels"].tolist() == [[6, 7, -100]]
    batch = create_seq2seq_collate(pad_token_id=0, decoder_start_token_id=1)([row])
    assert batch["input_ids"].tolist() == [[5, 6, 7]] and batch["decoder_input_ids"].tolist() == [[1, 5, 6]]
