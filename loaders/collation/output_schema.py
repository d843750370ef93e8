"""The columns of a batch: dtype and pad value of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.loaders.reading.batch import IGNORED


class OutputColumn:
    """The dtype and the pad value of one column of a batch.

    Args:
        dtype: a NumPy or torch dtype, or its name: integers, bool, or floats of 16 to 64 bits.
        pad_value: fills rows up to the batch's length; a value of this dtype.

    Raises:
        ValueError: the dtype is not supported, or cannot represent the pad value.
    """

    def __init__(self, dtype: npt.DTypeLike | torch.dtype, pad_value: float):
        try:
            known = torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)
            torch.from_numpy(np.empty(0, known))
        except TypeError:
            known = np.dtype(object)
        if known.kind not in "biuf":
            raise ValueError(
                f"dtype must be a number type of both NumPy and torch, such as 'int64' or 'float32', got {dtype!r}"
            )
        self.dtype: np.dtype[Any] = known
        self.pad_value = pad_value
        try:
            self.cast(np.array(pad_value))
        except ValueError:
            raise ValueError(f"pad value {pad_value} does not fit dtype {known}") from None

    def cast(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return numbers in this dtype, or in one that converts to it; only floats can lose precision.

        Raises:
            ValueError: a number does not fit this dtype.
        """
        if (
            values.dtype == self.dtype
            or np.can_cast(values.dtype, self.dtype)
            or (self.dtype.kind == "f" and values.dtype.kind in "biuf")
        ):
            return values
        if values.dtype.kind not in "biuf":
            raise ValueError(f"contains {_described(values)} instead of numbers")
        with np.errstate(invalid="ignore"):
            cast = values.astype(self.dtype)
        if not np.array_equal(cast, values):
            raise ValueError(f"contains {values[cast != values].flat[0]}, which does not fit dtype {self.dtype}")
        return cast

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputColumn) and (self.dtype, self.pad_value) == (other.dtype, other.pad_value)

    def __hash__(self) -> int:
        return hash((self.dtype, self.pad_value))

    def __repr__(self) -> str:
        return f"OutputColumn({str(self.dtype)!r}, {self.pad_value})"


class OutputSchema(Mapping[str, OutputColumn]):
    """The columns that a batch can have: a mapping from names to `OutputColumn`. `|` merges schemas.

    Args:
        columns: `(dtype, pad_value)` or an `OutputColumn` for each name.

    Raises:
        ValueError: a dtype is not supported, or cannot represent its pad value.
    """

    def __init__(self, columns: Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]):
        self._columns: dict[str, OutputColumn] = {}
        for name, column in columns.items():
            try:
                self._columns[name] = column if isinstance(column, OutputColumn) else OutputColumn(*column)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None

    @classmethod
    def default(cls, pad_token_id: int = 0, label_pad_token_id: int = IGNORED) -> OutputSchema:
        """Return the usual columns.

        int64 `input_ids`, `attention_mask`, `labels`, `position_ids`, `token_type_ids`, `special_tokens_mask`,
        `decoder_input_ids` and `decoder_attention_mask`, and float32 `loss_weights`. All but the ids and labels are
        padded with 0.

        Args:
            pad_token_id: pads `input_ids` and `decoder_input_ids`.
            label_pad_token_id: pads `labels`.
        """
        zero = ("attention_mask", "position_ids", "token_type_ids", "special_tokens_mask", "decoder_attention_mask")
        fill = {"input_ids": pad_token_id, "decoder_input_ids": pad_token_id, "labels": label_pad_token_id}
        columns = {name: ("int64", value) for name, value in {**fill, **dict.fromkeys(zero, 0)}.items()}
        return cls({**columns, "loss_weights": ("float32", 0)})

    def __getitem__(self, name: str) -> OutputColumn:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __or__(self, other: Mapping[str, OutputColumn | tuple[npt.DTypeLike | torch.dtype, float]]) -> OutputSchema:
        """Return these columns and those of `other`, which takes precedence."""
        return OutputSchema({**self._columns, **other})

    def __repr__(self) -> str:
        return f"OutputSchema({self._columns})"


def _described(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind in "US":
        return "text"
    other = next((value for value in values.flat if not isinstance(value, int | float)), None)
    return "None" if other is None else f"a {type(other).__name__}"
