"""Text in any encoding: byte-order marks, declared and detected encodings, and invalid bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.raw_rows import read, write_table
from support.soak import pairs
from tokenloom.assets.raw.formats.decode import legacy_encoding
from tokenloom.assets.stage.rejects import ROW
from tokenloom.errors import TokenloomError


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".txt"])
def test_a_byte_that_is_not_utf8_rejects_only_its_row(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / "rows.csv", [{"a": f"é {index}"} for index in range(9)])
    lines = {".json": '{{"a": "é {}"}},', ".jsonl": '{{"a": "é {}"}}'}.get(suffix, "é {}")
    text = "\n".join(lines.format(index) for index in range(9))
    text = {".json": f"[{text.removesuffix(',')}]", ".csv": f"a\n{text}", ".tsv": f"a\n{text}"}.get(suffix, text)
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(text.encode().replace("é 4".encode(), b"\xc3( 4"))
    rows, rejects, _ = read(path)
    assert [next(iter(row.values())) for row in rows] == [f"é {index}" for index in range(9) if index != 4]
    assert [(reject["code"], reject[ROW]) for reject in rejects] == [("invalid_utf8", 4)]


def test_lines_that_are_not_utf8_or_blank_do_not_affect_others(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(b"first\r\n\n  \t\n\xff\xfebad\n last one \n\xc2\xa0\nno end")
    rows, rejects, filtered = read(tmp_path / "rows.txt")
    assert [row["text"] for row in rows] == ["first", " last one ", "no end"]
    assert [(reject[ROW], reject["code"]) for reject in rejects] == [(3, "invalid_utf8")]
    assert filtered == 3


LEGACY_LINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "fr": (
        "latin-1 cp1252 mac_roman",
        (
            "Le garçon qui habitait près de la forêt.",
            "Où êtes-vous allés hier soir après le dîner ?",
            "Très bien, à bientôt !",
            "Ça va être une journée magnifique à la plage.",
            "L'élève a réussi son examen grâce à son travail.",
            "Cet été, nous irons à Genève.",
            "Les fenêtres étaient fermées à cause de la tempête.",
        ),
    ),
    "es": (
        "latin-1 mac_roman",
        (
            "El niño comió una manzana.",
            "¿Dónde está la estación más cercana, señor?",
            "Mañana será otro día, dijo la señora Núñez.",
            "¡Qué bonito es el otoño en España!",
        ),
    ),
    "pt": (
        "latin-1",
        (
            "A educação é um direito de todos os cidadãos.",
            "Não há nada melhor do que um café da manhã.",
            "As crianças estão brincando.",
        ),
    ),
    "de": (
        "latin-1 mac_roman",
        (
            "Die Straße führt über den Fluss nach Köln.",
            "Größere Äpfel schmecken süßer als kleine.",
            "Schöne Grüße aus München!",
        ),
    ),
    "it": (
        "latin-1",
        (
            "La città è più bella di notte.",
            "Perché non vieni con noi al caffè?",
            "L'università è già chiusa, purtroppo.",
        ),
    ),
    "da": (
        "latin-1",
        (
            "Jeg bor på en ø i nærheden af København.",
            "Børnene løber rundt på græsplænen.",
            "Smørrebrød er en specialitet.",
        ),
    ),
    "pl": (
        "cp1250 iso8859_2",
        (
            "Zażółć gęślą jaźń, powiedział nauczyciel.",
            "Wczoraj poszłam do sklepu po świeże bułki.",
            "Czy mógłbyś mi pomóc, proszę?",
        ),
    ),
    "cs": (
        "cp1250 iso8859_2",
        (
            "Příliš žluťoučký kůň úpěl ďábelské ódy.",
            "Dobrý den, jak se máte? Děkuji, dobře.",
            "Včera jsme šli do lesa a našli houby.",
        ),
    ),
    "tr": (
        "cp1254",
        (
            "Bugün hava çok güzel, dışarı çıkalım mı?",
            "Şimdi çay içelim ve yaşıyoruz.",
            "Değil mi?",
        ),
    ),
    "ru": (
        "cp1251 koi8-r",
        (
            "Привет! Как дела сегодня? Всё хорошо.",
            "Мы пошли в лес и нашли грибы.",
            "Спасибо большое!",
        ),
    ),
    "ja": (
        "shift_jis euc_jp",
        (
            "今日はとても良い天気ですね。",
            "散歩に行きましょう。",
            "ありがとうございます。",
        ),
    ),
    "zh": (
        "gb18030",
        (
            "今天天气很好，我们去散步吧。",
            "谢谢你的帮助。",
            "请问车站在哪里？",
        ),
    ),
}


@pytest.mark.parametrize(
    ("language", "encoding"),
    [(name, encoding) for name, (held, _) in LEGACY_LINES.items() for encoding in held.split()],
)
def test_short_samples_of_a_language_are_read_in_their_encoding(language: str, encoding: str) -> None:
    lines, noise = list(LEGACY_LINES[language][1]), random.Random(language)
    for _ in range(8):
        chosen = lines + noise.choices(lines, k=3)
        data = "\n".join(["id,text", *(f'{index},"{line}"' for index, line in enumerate(chosen))]).encode(encoding)
        found = legacy_encoding(data)
        assert found is not None and data.decode(found) == data.decode(encoding), (found, chosen)


LEGACY_TEXTS = {
    "latin-1": "Le café était très bon; où êtes-vous allés?",
    "cp1252": "Ça coûte 5 € — naïve “quotes” où l’été",
    "mac_roman": "Le café était très bon — “où êtes-vous allés?”",
    "cp1251": "Привет! Как дела сегодня? Всё хорошо.",
    "koi8-r": "Привет! Как дела сегодня? Всё хорошо.",
    "shift_jis": "今日はとても良い天気ですね。散歩に行きましょう。",
    "gb18030": "今天天气很好，我们去散步吧。",
}


ENCODINGS = [
    ("utf-8-sig", "auto"),
    ("utf-8-sig", "utf-8"),
    ("utf-16", "auto"),
    ("utf-16", "utf-16"),
    ("utf-16-le", "auto"),
    ("utf-16-be", "auto"),
    ("utf-32", "auto"),
    ("latin-1", "latin-1"),
    ("cp1252", "cp1252"),
]


WRITTEN = [
    (suffix, *encoding, ending)
    for suffix, encoding, ending in pairs([".json", ".jsonl", ".csv", ".tsv", ".txt"], ENCODINGS, ["\n", "\r\n"])
]


@pytest.mark.parametrize(("suffix", "encoding", "declared", "ending"), WRITTEN)
def test_encodings_and_line_ends(tmp_path: Path, suffix: str, encoding: str, declared: str, ending: str) -> None:
    texts = {".json": '[{"a": "né"},\n{"a": "b"}]', ".jsonl": '{"a": "né"}\n{"a": "b"}\n', ".txt": "né\nb\n"}
    texts[".csv"] = texts[".tsv"] = "a\nné\nb\n"
    (tmp_path / f"rows{suffix}").write_bytes(texts[suffix].replace("\n", ending).encode(encoding))
    rows, rejects, _ = read(tmp_path / f"rows{suffix}", encoding=declared)
    assert rows == [{"text" if suffix == ".txt" else "a": value} for value in ("né", "b")]
    assert rejects == []


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("encoding", LEGACY_TEXTS)
def test_text_that_is_not_utf8_is_read_in_the_detected_encoding(tmp_path: Path, suffix: str, encoding: str) -> None:
    lines = [f"{index} {LEGACY_TEXTS[encoding]}" for index in range(50)]
    ascii_first = ["plain ascii"] * 100_000
    (tmp_path / f"rows{suffix}").write_bytes("\n".join(["a", *ascii_first, *lines]).encode(encoding))
    rows, rejects, _ = read(tmp_path / f"rows{suffix}")
    assert [next(iter(row.values())) for row in rows][-50:] == lines
    assert rejects == []


@pytest.mark.parametrize("declared", ["ascii", "cp1252"])
def test_bytes_invalid_in_the_declared_encoding_reject_only_their_rows(tmp_path: Path, declared: str) -> None:
    (tmp_path / "rows.txt").write_bytes(b"one\nt\x81wo\nthree")
    rows, rejects, _ = read(tmp_path / "rows.txt", encoding=declared)
    assert [row["text"] for row in rows] == ["one", "three"]
    assert [(reject["code"], reject[ROW]) for reject in rejects] == [("invalid_utf8", 1)]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["Привет, café\n", "の本を 読む\n", "café def\n", "Ω a\n"])
def test_utf16_and_utf32_without_a_mark_are_detected_by_their_zeros(tmp_path: Path, encoding: str, text: str) -> None:
    (tmp_path / "rows.txt").write_bytes((text * 20).encode(encoding))
    assert read(tmp_path / "rows.txt") == ([{"text": text.strip()}] * 20, [], 0)


@pytest.mark.parametrize(
    "text",
    ["000\n\0\n0\x1f\x08\n\0\n", "\0\n" * 40, "a\0b\0\n\0" * 20, "\0\0\0a\0\0\0\n" * 20, "é\0\0\0\n\0\0\0" * 9],
)
@pytest.mark.parametrize("suffix", [".txt", ".tsv"])
def test_what_is_utf8_is_not_taken_for_another_encoding(tmp_path: Path, text: str, suffix: str) -> None:
    (tmp_path / f"rows{suffix}").write_bytes(text.encode())
    rows, rejects, _ = read(tmp_path / f"rows{suffix}", reader={"header": False} if suffix == ".tsv" else {})
    assert [value for row in rows for value in row.values()] == [line for line in text.split("\n") if line]
    assert rejects == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["abc def", "Привет, мир"])
def test_utf16_that_is_also_utf8_needs_the_setting_except_in_json(tmp_path: Path, text: str, encoding: str) -> None:
    (tmp_path / "rows.txt").write_bytes((f"{text}\n" * 20).encode(encoding))
    assert read(tmp_path / "rows.txt")[0][0] != {"text": text}
    assert read(tmp_path / "rows.txt", encoding=encoding) == ([{"text": text}] * 20, [], 0)
    (tmp_path / "rows.jsonl").write_bytes(('{"a": "b"}\n' * 20).encode(encoding))
    assert read(tmp_path / "rows.jsonl") == ([{"a": "b"}] * 20, [], 0)


def test_stray_zeros_are_not_taken_for_utf16(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(b"some\x00thing\nelse\n" * 50)
    assert read(tmp_path / "rows.txt")[0] == [{"text": "some\x00thing"}, {"text": "else"}] * 50


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "hex", "rot13"])
def test_a_declared_encoding_that_does_not_fit_is_an_error(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "rows.txt").write_bytes("né\nb".encode())
    with pytest.raises(TokenloomError, match=r"rows\.txt|encoding"):
        read(tmp_path / "rows.txt", encoding=encoding)
