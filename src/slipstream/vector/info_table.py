"""Which forms of infos are known, who writes them into the block, and who reads them there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.vector.info_form import MOST_BYTES, InfoForm, Signature, signature_of
from slipstream.vector.native_infos import add_info

NOTHING, APART, FIRST = range(3)
"""What a copy's entry in `told` says: it said nothing; its info is handed over on request; its info
lies in the block in form 0. Entry 3 is form 1, and so on."""

Part = tuple[NDArray[np.int64], Callable[[dict[str, Any]], None]]
"""Rows of copies, and what adds their infos to a batch."""

_MOST_FORMS = 64


class InfoTable:
    """Forms in the order in which they were first seen.

    The reader of infos decides what they are: a writer that meets an info of another form says
    `APART`, the reader asks for it, hands its own forms over with the question, and takes note of
    the form. From the second time on the info lies in the block.
    """

    def __init__(self) -> None:
        self.forms: list[InfoForm] = []
        self._code_of: dict[Signature, int] = {}
        self._plain: dict[Any, int] = {}

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Of all forms."""
        return tuple(form.signature for form in self.forms)

    def take(self, signatures: Sequence[Signature]) -> None:
        """A writer's: the forms that the reader knows."""
        for signature in signatures[len(self.forms) :]:
            form = InfoForm(signature)
            self._code_of[signature] = FIRST + len(self.forms)
            if form.plain is not None:
                self._plain[form.plain] = FIRST + len(self.forms)
            self.forms.append(form)

    def note(self, info: Any) -> None:
        """The reader's: an info that was handed over, whose form may be written from now on."""
        if not info or len(self.forms) == _MOST_FORMS:
            return
        signature = signature_of(info)
        if signature is None or signature in self._code_of:
            return
        if 0 < InfoForm(signature).size <= MOST_BYTES:
            self.take((*self.signatures, signature))

    def write(self, info: Any, memory: memoryview, row: int) -> int:
        """Writes a copy's info into its place; what `told` is to say of it.

        Args:
            info: not empty.
            memory: bytes of the places of all copies.
            row: of the copy.
        """
        if not self.forms or type(info) is not dict:
            return APART
        code = self._plain.get((tuple(info), tuple(map(type, info.values()))))
        if code is None:
            signature = signature_of(info)
            code = None if signature is None else self._code_of.get(signature)
            if code is None:
                return APART
        try:
            self.forms[code - FIRST].pack(info, memory, row * MOST_BYTES)
        except struct.error:  # beyond 64 bits
            return APART
        return code

    def read(self, places: NDArray[np.uint8], row: int, code: int) -> dict[str, Any]:
        """A copy's info, a fresh dict."""
        return self.forms[code - FIRST].unpack(places[row].data, 0)

    def batch(
        self,
        told: NDArray[np.uint8],
        places: NDArray[np.uint8],
        apart: Mapping[int, dict[str, Any]],
    ) -> dict[str, Any]:
        """Infos of all copies in Gymnasium's form, see `batch_infos`.

        Args:
            told: [E] NOTHING, APART, or where the info lies.
            places: [E, MOST_BYTES].
            apart: infos that were handed over, by row.
        """
        batch: dict[str, Any] = {}
        parts = self.parts(np.flatnonzero(told), told, places, apart)
        for _, add in sorted(parts, key=lambda part: int(part[0][0])):
            add(batch)
        return batch

    def parts(
        self,
        rows: NDArray[np.int64],
        told: NDArray[np.uint8],
        places: NDArray[np.uint8],
        apart: Mapping[int, dict[str, Any]],
    ) -> Iterator[Part]:
        """Infos of some copies, those of one form together, to be added in the order of rows.

        Args:
            rows: of the copies, ascending.
            told, places, apart: as for `batch`.
        """
        size, codes = len(told), told[rows]
        for code in np.unique(codes).tolist():
            own = rows[codes == code]
            if code == NOTHING:
                yield own, _nothing
            elif code == APART:
                for row in own.tolist():
                    info = apart[row]
                    yield np.array([row]), partial(_add_one, info=info, row=row, size=size)
            else:
                form = self.forms[code - FIRST]
                yield own, partial(form.add, rows=own, places=places)


def _nothing(batch: dict[str, Any]) -> None:
    """An empty info."""


def _add_one(batch: dict[str, Any], info: dict[str, Any], row: int, size: int) -> None:
    add_info(batch, info, row, size)
