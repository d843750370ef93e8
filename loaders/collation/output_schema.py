"""What the columns of a batch are: the dtype of each, and the value that fills rows up to the batch's length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.loaders.collation.batch import IGNORED


class OutputColumn:
    """The dtype of one column of a batch, and what fills its rows up to the batch's length.

    Args:
        dtype: of NumPy or torch, or its name: integers, bool, or floats of 16 to 64 bits.
        pad_value: a number that this dtype holds.

    Raises:
        ValueError: there is no such dtype, or it does not hold the pad value.
    """

    def __init__(self, dtype: npt.DTypeLike | torch.dtype, pad_value: float):
        try:
            known = torch.empty(0, dtype=dtype).numpy().dtype if isinstance(dtype, torch.dtype) else np.dtype(dtype)
            torch.from_numpy(np.empty(0, known))
        except TypeError:
            known = np.dtype(object)
        if known.kind not in "biuf":
            raise ValueError(
                f"dtype {dtype!r} is no number that NumPy and torch share; say 'int64' or 'float32', for example"
            )
        self.dtype: np.dtype[Any] = known
        self.pad_value = pad_value
        try:
            self.cast(np.array(pad_value))
        except ValueError:
            raise ValueError(f"pad value {pad_value} is none of dtype {known}") from None

    def cast(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Numbers in a dtype that becomes this one without loss; floats may be rounded to smaller floats.

        Raises:
            ValueError: a number is none of this dtype.
        """
        if (
            values.dtype == self.dtype
            or np.can_cast(values.dtype, self.dtype)
            or (self.dtype.kind == "f" and values.dtype.kind in "biuf")
        ):
            return values
        if values.dtype.kind not in "biuf":
            raise ValueError(f"holds {_described(values)}, not numbers")
        with np.errstate(invalid="ignore"):
            cast = values.astype(self.dtype)
        if not np.array_equal(cast, values):
            raise ValueError(f"holds {values[cast != values].flat[0]}, which is none of {self.dtype}")
        return cast

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputColumn) and (self.dtype, self.pad_value) == (other.dtype, other.pad_value)

    def __hash__(self) -> int:
        return hash((self.dtype, self.pad_value))

    def __repr__(self) -> str:
        return f"OutputColumn({str(self.dtype)!r}, {self.pad_value})"


class OutputSchema(Mapping[str, OutputColumn]):
    """The columns that a batch may have, by name: dtype and pad value of each. Schemas are joined with `|`.

    Args:
        columns: for each name `(dtype, pad_value)`, or an `OutputColumn`.

    Raises:
        ValueError: there is no such dtype, or it does not hold the pad value.
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
        """int64 input_ids, attention_mask, labels, position_ids, token_type_ids, special_tokens_mask and
        decoder_input_ids, decoder_attention_mask, and float32 loss_weights; all but ids and labels are filled with 0.
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
        """These columns and those of `other`, which wins where both have one."""
        return OutputSchema({**self._columns, **other})

    def __repr__(self) -> str:
        return f"OutputSchema({self._columns})"


def _described(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind in "US":
        return "text"
    found = next((value for value in values.flat if not isinstance(value, int | float)), None)
    return "None" if found is None else f"a {type(found).__name__}"
