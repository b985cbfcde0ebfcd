"""The bytes of every token id, so that text positions become token positions without encoding anything again.

Re-encoding a decoded response does not give the generated ids back (merges differ, `\` fuses with the space before
it, characters split over tokens), so spans are located in the concatenation of the ids' own bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

import numpy as np

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PROBES = ("so it is \\boxed{5}.", "a  b\n\n\\frac{1}{2} = 0.5", "café 日本 😀")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (GPT-2's convention)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(b): b for b in printable}
    spare = 0
    for b in range(256):
        if b not in printable:
            alphabet[chr(256 + spare)] = b
            spare += 1
    return alphabet


def _decoder_types(node: dict | None) -> set[str]:
    if not node:
        return set()
    types = {node["type"]}
    for child in node.get("decoders", ()):
        types |= _decoder_types(child)
    return types


class TokenBytes:
    """Table of the bytes of every token id of one tokenizer.

    Args:
        table: ``table[i]`` holds the bytes of token id ``i``; ids outside of it (padded vocabularies) count as empty.
        special: ids of control tokens (end of sequence, ...), which a decoder leaves out of the text.
    """

    def __init__(self, table: Sequence[bytes], special: Iterable[int] = ()):
        self._table = list(table)
        self.special = frozenset(special)

    @classmethod
    def from_tokenizer(cls, tokenizer) -> TokenBytes:
        """Build the table from a fast tokenizer (byte-level BPE, SentencePiece pieces, or plain pieces).

        Raises:
            ValueError: the tokenizer is not a fast one, or its tokens' bytes do not add up to what it decodes.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(
                f"{type(tokenizer).__name__} is not a fast tokenizer: answer spans need one (save it with a "
                "tokenizer.json and load it as PreTrainedTokenizerFast)"
            )
        decoders = _decoder_types(json.loads(backend.to_str()).get("decoder"))
        alphabet = _byte_level_alphabet()
        added = {i: str(t).encode() for i, t in tokenizer.added_tokens_decoder.items()}

        def piece_bytes(piece: str) -> bytes:
            if "ByteLevel" in decoders:
                known = all(c in alphabet for c in piece)
                return bytes(alphabet[c] for c in piece) if known else piece.encode()
            byte = _BYTE_TOKEN.fullmatch(piece) if "ByteFallback" in decoders else None
            if byte:
                return bytes([int(byte.group(1), 16)])
            return piece.replace("\u2581", " ").encode() if decoders - {"Fuse"} else piece.encode()

        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        special = {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        if "ByteLevel" not in decoders:  # there added tokens stand for themselves; other decoders treat them as pieces
            added = {}
        table = cls([added[i] if i in added else piece_bytes(p or "") for i, p in enumerate(pieces)], special)
        table._check(tokenizer)
        return table

    def _check(self, tokenizer) -> None:
        for probe in _PROBES:
            ids = tokenizer.encode(probe, add_special_tokens=False)
            ours = self.text(ids).decode(errors="replace").strip()
            theirs = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False).strip()
            if ours != theirs:
                raise ValueError(
                    f"cannot read the bytes of {type(tokenizer).__name__}'s tokens: they add up to {ours!r}, "
                    f"the tokenizer decodes {theirs!r}"
                )

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """Bytes of each token."""
        table, size = self._table, len(self._table)
        return [table[i] if 0 <= i < size else b"" for i in ids]

    def text(self, ids: Iterable[int]) -> bytes:
        """Bytes of the whole sequence."""
        return b"".join(self.pieces(ids))

    def text_and_offsets(self, ids: Sequence[int], skip_special: bool = False) -> tuple[bytes, np.ndarray]:
        """Bytes of the sequence and the (n + 1,) int64 start offset of each token, the end last.

        With ``skip_special`` control tokens have no bytes, as in the text that a reward function is given.
        """
        pieces = self.pieces(ids)
        if skip_special:
            pieces = [b"" if i in self.special else p for i, p in zip(ids, pieces, strict=True)]
        offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(p) for p in pieces], out=offsets[1:])
        return b"".join(pieces), offsets


def end_ids(tokenizer) -> frozenset[int]:
    """Ids that end or pad a response: end of sequence and padding."""
    return frozenset(i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None)


def tokens_overlapping(offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Half-open token range that overlaps the bytes [start, end); empty for an empty byte range.

    Tokens without bytes (special tokens that decode to nothing) at the borders are left out.
    """
    if end <= start:
        return 0, 0
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, end, side="left"))
    return first, last
